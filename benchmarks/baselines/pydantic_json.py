"""JSON to the worker, as it was before msgpack."""

import json
import sys
from typing import Any

from benchmarks.baselines.relay import serve


def encode(request: dict[str, Any]) -> bytes:
    """A worker's body."""
    return json.dumps(request).encode()


if __name__ == "__main__":
    serve(encode, {}, sys.argv[1:])
