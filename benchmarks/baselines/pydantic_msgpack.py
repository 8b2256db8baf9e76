"""msgpack to the worker, made from the dumped pydantic model."""

import sys

import msgspec

from benchmarks.baselines.relay import serve

if __name__ == "__main__":
    serve(msgspec.msgpack.encode, {"X-TRTLLM-Msgpack": "1", "accept": "application/msgpack"}, sys.argv[1:])
