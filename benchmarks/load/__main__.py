"""Makes one load: `python -m benchmarks.load PLAN`, a plan in JSON; prints what it measured, in JSON."""

import sys

import msgspec
import uvloop

from benchmarks.load.generator import measure
from benchmarks.load.plan import Load

if __name__ == "__main__":
    print(msgspec.json.encode(uvloop.run(measure(msgspec.json.decode(sys.argv[1], type=Load)))).decode())
