"""What the processes of one gateway tell each other: their metrics, so that a scrape of any of them is the sum of all.

Each listens on a Unix socket in a folder that only their user can enter, and answers a connection with its own page.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

DEADLINE_SECONDS: Final = 1.0
"""How long another process may take to answer."""

_NOT_SUMS: Final = (
    "packrelay_gateway_worker_up",
    "packrelay_gateway_worker_breaker_open",
    "process_start_time_seconds",
    "process_max_fds",
)
"""Samples of which the largest stands for all."""


class Siblings:
    """`paths` are the sockets of all processes, `own` is the place of this one's."""

    def __init__(self, paths: Sequence[Path], own: int) -> None:
        self._own = paths[own]
        self._others = [path for path in paths if path != self._own]
        self._server: asyncio.Server | None = None

    async def start(self, page: Callable[[], bytes]) -> None:
        """Answer the others with `page`."""
        self._own.unlink(missing_ok=True)  # Of a process that this one replaces.

        async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(page())
            writer.close()

        self._server = await asyncio.start_unix_server(answer, self._own)

    async def pages(self) -> list[bytes]:
        """The pages of all others. Raises OSError or TimeoutError: a sum that lacks somebody is none."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await asyncio.gather(*(_page_at(path) for path in self._others))

    async def close(self) -> None:
        """Stop answering. A second call does nothing."""
        if self._server is not None:
            self._server.close()
            self._server = None


async def _page_at(path: Path) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        return await reader.read()
    finally:
        writer.close()


def added(pages: Iterable[bytes]) -> bytes:
    """The pages as one: samples of the same name and labels are summed."""
    families: dict[str, list[str]] = {}
    samples: dict[str, dict[str, float]] = {}
    for page in pages:
        name = ""
        for line in page.decode().splitlines():
            if line.startswith("# HELP"):
                name = line.split(" ", 3)[2]
                families[name] = [line]
            elif line.startswith("#"):
                families[name].append(line)
            else:
                _add(samples.setdefault(name, {}), line)
    lines: list[str] = []
    for name, head in families.items():
        lines += head
        lines += [f"{sample} {value!r}" for sample, value in samples.get(name, {}).items()]
    return "\n".join([*lines, ""]).encode()


def _add(samples: dict[str, float], line: str) -> None:
    sample, _, text = line.rpartition(" ")
    value = float(text)
    known = samples.get(sample)
    if known is None:
        samples[sample] = value
    elif sample.startswith(_NOT_SUMS):
        samples[sample] = max(known, value)
    else:
        samples[sample] = known + value
