"""Stand-ins that tests control. Each keeps its contract; `tests/unit/test_fakes.py` holds them to it."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Literal

from worker.engines.base import (
    Capability,
    Engine,
    EngineDead,
    EngineFacts,
    SequenceOutput,
    SequenceRequest,
    Token,
)

PLAIN_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


class ManualClock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class ControlledSequence:
    """One sequence of a ControlledEngine: says what the test has it say, one token a byte."""

    def __init__(self, request: SequenceRequest) -> None:
        self.request = request
        self.closed = asyncio.Event()
        self.aborted = asyncio.Event()
        self.aborts = 0
        self._said: list[SequenceOutput] = []
        self._failure: Exception | None = None
        self._ready = asyncio.Event()

    def say(self, text: str = "", finish: Literal["stop", "length"] | None = None, **fields: Any) -> None:
        """The next tokens, and perhaps the end. `fields` are any others of SequenceOutput (Any: they have several types)."""
        tokens = [Token(id=byte, data=bytes([byte]), logprob=-1.0) for byte in text.encode()]
        self.put(SequenceOutput(tokens=tokens, finish_reason=finish, **fields))

    def put(self, output: SequenceOutput) -> None:
        """An output as it is."""
        self._said.append(output)
        self._ready.set()

    def fail(self, error: Exception) -> None:
        """Raise this where the sequence is read."""
        self._failure = error
        self._ready.set()

    def abort(self) -> None:
        """What the engine does on an abort: the sequence says nothing more."""
        self.aborts += 1
        self.aborted.set()

    async def outputs(self) -> AsyncGenerator[SequenceOutput, None]:
        """What was said, all that is new at a time."""
        try:
            while True:
                await self._ready.wait()
                self._ready.clear()
                if self._said:
                    output = self._merged()
                    yield output
                    if output.finish_reason is not None:
                        return
                if self._failure is not None:
                    raise self._failure
        finally:
            self.closed.set()

    def _merged(self) -> SequenceOutput:
        said, self._said = self._said, []
        if len(said) == 1:
            return said[0]
        last = said[-1]
        return SequenceOutput(
            tokens=[token for output in said for token in output.tokens],
            finish_reason=last.finish_reason,
            stop_token=last.stop_token,
            cached_tokens=said[0].cached_tokens,
            prompt=said[0].prompt,
            state=last.state,
        )


class ControlledEngine(Engine):
    """An engine that knows bytes and does nothing by itself. `asked` waits for the sequences it is asked for."""

    def __init__(self, model: str = "fake", context_length: int = 64) -> None:
        self.facts = EngineFacts(
            engine="controlled",
            model=model,
            context_length=context_length,
            vocabulary_size=256,
            max_batch_size=4,
            capabilities=frozenset(Capability),
            chat_template=PLAIN_TEMPLATE,
            bos="",
            eos="\x00",
        )
        self.sequences: list[ControlledSequence] = []
        self.aborted: list[str] = []
        self.dead = False
        self.closed = False
        self._asked = asyncio.Condition()

    async def start(self) -> EngineFacts:
        return self.facts

    async def asked(self, number: int = 0) -> ControlledSequence:
        """The sequence of this number, once it is being read."""
        async with self._asked:
            await self._asked.wait_for(lambda: len(self.sequences) > number)
        return self.sequences[number]

    async def generate(self, request: SequenceRequest) -> AsyncGenerator[SequenceOutput, None]:
        sequence = ControlledSequence(request)
        self.sequences.append(sequence)
        async with self._asked:
            self._asked.notify_all()
        outputs = sequence.outputs()
        try:
            async for output in outputs:
                yield output
        finally:
            await outputs.aclose()

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        for sequence in self.sequences:
            if sequence.request.request_id == request_id:
                sequence.abort()

    async def close(self) -> None:
        self.closed = True

    def tokenize(self, text: str, *, special: bool, add_special: bool) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])

    def check(self) -> None:
        if self.dead:
            raise EngineDead("It was killed by a test.")
