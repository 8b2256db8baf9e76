"""Who does it: the public OpenAI API, and the choice of the workers that answer each request.

Imports `schemas`, never `worker`: it knows workers by what they answer on the wire. Importing this package imports none
of its modules.
"""


# The console scripts stand here because Python names the place of a package that lacks a name, and not of one that lacks a
# module: a script that meets somebody else's `gateway` says where that is.


def gateway_script() -> int:
    from gateway.entry import main

    return main()


def up_script() -> int:
    from gateway.entry import up

    return up()
