"""What is done: an HTTP server (and a gRPC one) around one engine, which turns a request into events.

Imports `schemas`, never `gateway`. Importing this package imports none of its modules.
"""


# Here, and not in a module, so that a script that meets somebody else's `worker` says where that is (as in `gateway`).
def worker_script() -> int:
    from worker.entry import main

    return main()
