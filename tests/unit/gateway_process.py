"""A gateway process in front of a fake backend, for tests of signals: `python -m tests.unit.gateway_process GRACE STREAM`.

Streams never end by themselves: they are silent after their first event, or endless. What it logs goes to stderr, the port it
listens on with it.
"""

import sys

from gateway import log
from gateway.server import serve
from tests.unit.gateway_fakes import EVENT, EndlessStream, FakeStream, rig


def main() -> int:
    """Serve until a signal comes."""
    log.configure("info")
    stream = EndlessStream() if sys.argv[2] == "endless" else FakeStream(EVENT, silent=True)
    gateway = rig(stream, port=0, grace=float(sys.argv[1]))
    return serve(gateway.door, gateway.parts.config, gateway.parts.lifecycle)


if __name__ == "__main__":
    sys.exit(main())
