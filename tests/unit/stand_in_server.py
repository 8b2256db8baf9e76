"""Stands in for the programs that packrelay-up starts: `python -m tests.unit.stand_in_server gateway|worker FLAGS…`.

Answers `/health` and `/v1/models`, and writes what happens to it into the file STAND_IN_JOURNAL, one JSON object a line.
STAND_IN_GATEWAY and STAND_IN_WORKER choose a behaviour:

    refuses   says why on stderr and exits with status 3
    loading   is healthy only once the file STAND_IN_GO exists
    deaf      notes SIGTERM and goes on
    locked    wants a key for `/v1/models`
"""

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType

from schemas.origin import start


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, package: str, flags: list[str]) -> None:
        self.package = package
        self.behaviour = os.environ.get(f"STAND_IN_{package.upper()}", "")
        super().__init__((flags[flags.index("--host") + 1], int(flags[flags.index("--port") + 1])), Answer)

    def note(self, what: str, **details: object) -> None:
        """Append to the journal; one short write is atomic among the stand-ins."""
        entry = {"what": what, "package": self.package, "pid": os.getpid(), **details}
        with Path(os.environ["STAND_IN_JOURNAL"]).open("a") as journal:
            journal.write(json.dumps(entry) + "\n")

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Note the signal, and end unless deaf."""
        self.note(signal.Signals(number).name)
        if self.behaviour != "deaf":
            self.note("ended")
            sys.exit(0)


class Answer(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        """Answer a probe."""
        if self.path == "/health":
            loading = self.server.behaviour == "loading" and not Path(os.environ["STAND_IN_GO"]).exists()
            self._reply(503 if loading else 200, b"")
        elif self.server.behaviour == "locked":
            self._reply(401, b"")
        else:
            self._reply(200, b'{"object": "list", "data": [{"id": "stand-in\'s"}]}')

    def _reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing: stderr is what some tests look at."""


def main() -> int:
    """Serve until a signal ends it."""
    package, *flags = sys.argv[1:]
    server = Server(package, flags)
    if server.behaviour == "refuses":
        sys.stderr.write("the stand-in will not\n")
        return 3
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.on_signal)
    server.note("started", flags=flags, environment=dict(os.environ))
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(start("stand-in", extra="gateway", module="tests.unit.stand_in_server"))
