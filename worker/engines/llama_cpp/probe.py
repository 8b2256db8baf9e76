"""The probe: a child process that compiles constraints and lets llama.cpp sample with them, so that only it can be hurt.

    python -m worker.engines.llama_cpp.probe MODEL      frames on stdin and stdout: 4 bytes of length, msgpack

It says READY once, and then one Verdict for each Constraint. A constraint it does not survive has no verdict.
"""

import resource
import signal
import sys
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
from msgspec import Struct

from worker.engines.base import Constraint
from worker.engines.llama_cpp.grammar import characters
from worker.engines.llama_cpp.grammar.compiling import compiled
from worker.engines.llama_cpp.grammar.tree import Unsupported

READY: Final = b"READY"
ALARM_SECONDS: Final = 20
"""The kernel ends a probe that takes longer than this, also if nobody is left to do it."""

_SPARE_MEMORY: Final = 4 << 30
_WALKS: Final = 2
_WALK_TOKENS: Final = 12


class Verdict(Struct, frozen=True):
    """`gbnf` is a grammar that works; without one, `reason` is a sentence for the client."""

    gbnf: str = ""
    reason: str = ""


def read_frame(stream: BinaryIO) -> bytes:
    """One frame, empty at the end."""
    head = stream.read(4)
    return stream.read(int.from_bytes(head, "little")) if len(head) == 4 else b""


def frame(data: bytes) -> bytes:
    """The bytes of one frame."""
    return len(data).to_bytes(4, "little") + data


class Probe:
    """A model to try grammars with. One token has been evaluated; all samples are drawn from what follows it."""

    def __init__(self, path: Path) -> None:
        # Not at the top: the parent imports this module for its frames alone.
        from worker.engines.llama_cpp.binding import Context, Row, Weights
        from worker.engines.llama_cpp.vocabulary import Vocabulary

        self._weights = Weights(path, repacked=False)
        self._vocabulary = Vocabulary(self._weights)
        self._context = Context(self._weights, slots=1, length=256, rows=8, threads=1)
        self._context.evaluate([Row(min(self._vocabulary.ends, default=0), 0, 0, logits=True)])
        self._spoken = characters.spoken_with(self._vocabulary.single_bytes())

    def verdict(self, constraint: Constraint) -> Verdict:
        """Compile and try."""
        try:
            gbnf = compiled(constraint, self._spoken)
        except Unsupported as error:
            return Verdict(reason=str(error))
        for seed in range(_WALKS):
            self._walk(gbnf, seed)
        return Verdict(gbnf=gbnf)

    def _walk(self, gbnf: str, seed: int) -> None:
        """Sample a few tokens. A grammar that llama.cpp does not take ends the process here."""
        from worker.engines.llama_cpp.binding import Chain
        from worker.engines.llama_cpp.sampling import mute

        chain = Chain()
        chain.bias(self._vocabulary.size, mute(self._vocabulary))
        chain.grammar(self._weights, gbnf)
        chain.temperature(2.0)
        chain.draw(seed)
        try:
            for _ in range(_WALK_TOKENS):
                if self._context.sample(chain, 0) in self._vocabulary.ends:
                    break
        finally:
            chain.close()


def main(path: str) -> None:
    """Serve until stdin ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = _SPARE_MEMORY + 2 * Path(path).stat().st_size
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    probe = Probe(Path(path))
    decode = msgspec.msgpack.Decoder(Constraint).decode
    out = sys.stdout.buffer
    out.write(frame(READY))
    out.flush()
    while data := read_frame(sys.stdin.buffer):
        signal.alarm(ALARM_SECONDS)
        verdict = probe.verdict(decode(data))
        signal.alarm(0)
        out.write(frame(msgspec.msgpack.encode(verdict)))
        out.flush()


if __name__ == "__main__":
    main(sys.argv[1])
