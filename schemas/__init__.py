"""What is said: the types of both hops, public OpenAI JSON and internal msgpack, and the codecs that read and write
them.

Imports msgspec and nothing else of other people's (`schemas.pb` apart, which nothing in here imports), so it can be
installed and read anywhere. Importing this package imports none of its modules.
"""
