"""What an engine puts out becomes what a client reads: UTF-8, stop strings, echo, logprobs, tool calls and reasoning, all here.

Nothing here depends on how the engine cuts its output: text is held back only while it could still become a stop string, a tag or
the rest of a character.
"""

import math
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from msgspec import UNSET, Struct

from schemas.events import Alternative, Delta, TokenLogprob
from schemas.openai.stream import finite
from worker.engines.base import Candidate, SequenceOutput, Token
from worker.markup import MarkupOptions, MarkupReader, Reading, joined
from worker.stops import StopHit, StopMatcher, StopString

_Utf8Decoder = getincrementaldecoder("utf-8")


class OutputOptions(Struct, frozen=True, kw_only=True):
    """How one sequence is read.

    `stops` count only when completed after the first `min_tokens` tokens; `include_stop` leaves in the text what ended it.
    `token_bytes` is the engine's, for tokens that are not text; with `show_special` they are shown. `logprobs` reports log
    probabilities, `ranked` only adds them up; `chosen_in_top` puts the chosen token among its alternatives (completions' shape).
    `echo` stands in front of the text, None for no echo; `prompt_only` ends the sequence after it. `markup` None reads no tags.
    """

    token_bytes: Callable[[int], bytes]
    stops: tuple[StopString, ...] = ()
    include_stop: bool = False
    min_tokens: int = 0
    show_special: bool = False
    logprobs: bool = False
    ranked: bool = False
    chosen_in_top: bool = False
    echo: str | None = None
    prompt_only: bool = False
    markup: MarkupOptions | None = None


class _Entry(NamedTuple):
    """A log probability waiting for its text. The token's characters are numbers `begin` up to `end` of the generated text; the one
    a token leaves unfinished counts as begun in it.
    """

    begin: int
    end: int
    logprob: TokenLogprob


class SequenceReader:
    """Follows one sequence. After `finished` the caller closes the engine's generator and feeds nothing more."""

    def __init__(self, index: int, options: OutputOptions) -> None:
        self.index = index
        self.finished = False
        self._options = options
        self._decoder = _Utf8Decoder("replace")
        self._stops = StopMatcher(options.stops) if options.stops else None
        self._hit: StopHit | None = None
        self._markup = MarkupReader(options.markup) if options.markup else None
        self._begun = False
        self._held = ""
        self._decoded = 0  # characters decoded so far, `_held` included
        self._tokens = 0
        self._told = 0  # tokens that a delta has accounted for
        self._entries: deque[_Entry] = deque()
        self._logprob_sum = 0.0
        single = options.markup is not None and options.markup.single_call
        self._stepwise = bool(options.stops) or options.logprobs or options.ranked or single

    @property
    def mean_logprob(self) -> float:
        """The mean natural log probability of the generated tokens: what best_of ranks by. -inf before the first one."""
        return self._logprob_sum / self._tokens if self._tokens else -math.inf

    def feed(self, output: SequenceOutput) -> Delta | None:
        """What this output adds for the client, None while there is nothing to tell.

        Tokens that follow the end (a stop string, the only tool call wanted) in the same output were never asked for, and do not
        count.
        """
        echo, logprobs = self._echo(output)
        if self._options.prompt_only:
            self.finished = True
            return Delta(index=self.index, text=echo, logprobs=logprobs or UNSET, finish_reason="length")
        readings = [Reading(echo), *self._read(output)]
        if output.finish_reason and not self._over:
            readings.append(self._marked(self._rest(cut=output.finish_reason == "length"), last=True))
        ended = self._over or output.finish_reason is not None
        logprobs += self._released(everything=ended and self._hit is None)
        return self._delta(joined(readings), logprobs, output)

    def _echo(self, output: SequenceOutput) -> tuple[str, list[TokenLogprob]]:
        """The prompt's text and log probabilities, in front of the first delta."""
        if self._begun or self._options.echo is None:
            return "", []
        self._begun = True
        entries = [self._entry(token, self._data(token)) for token in output.prompt] if self._options.logprobs else []
        return self._options.echo, entries

    def _read(self, output: SequenceOutput) -> list[Reading]:
        """The output's text as far as it is certain to be delivered: token by token where the end or log probabilities need it."""
        data = [self._data(token) for token in output.tokens]
        if output.finish_reason == "stop" and data and not output.tokens[-1].data:
            data[-1] = self._ending(output)
        if not self._stepwise:
            self._tokens += len(data)
            return [self._marked(self._decode(b"".join(data)))]
        readings = []
        for token, piece in zip(output.tokens, data, strict=True):
            readings.append(self._read_token(token, piece))
            if self._over:
                break
        return readings

    def _read_token(self, token: Token, data: bytes) -> Reading:
        self._tokens += 1
        begin = self._decoded
        text = self._decode(data)
        if token.logprob is not None:
            self._note(token, data, begin)
        text = self._until_stop(text)
        return self._marked(text, last=self._hit is not None)

    @property
    def _over(self) -> bool:
        """Whether the sequence has ended before the engine says so."""
        return self._hit is not None or (self._markup is not None and self._markup.complete)

    def _data(self, token: Token) -> bytes:
        if token.data or not self._options.show_special:
            return token.data
        return self._options.token_bytes(token.id)

    def _ending(self, output: SequenceOutput) -> bytes:
        """The bytes of the token that ended the sequence: no text, unless asked for."""
        shown = self._options.include_stop and (output.stop_token is not None or self._options.show_special)
        return self._options.token_bytes(output.tokens[-1].id) if shown else b""

    def _decode(self, data: bytes, *, last: bool = False) -> str:
        text = self._decoder.decode(data, last)
        self._decoded += len(text)
        return text

    def _until_stop(self, text: str) -> str:
        """What can be delivered now that `text` is known; what may be the beginning of a stop string stays in `_held`."""
        if self._stops is None:
            return text
        whole = self._held + text
        hit = self._stops.feed(text, armed=self._tokens > self._options.min_tokens)
        if hit is None:
            certain = len(whole) - self._stops.held
            self._held = whole[certain:]
            return whole[:certain]
        end = len(self._held) + hit.end - (0 if self._options.include_stop else len(hit.stop))
        # From here on `_decoded` counts what is delivered: log probabilities behind it are dropped.
        self._decoded += end - len(whole)
        self._held, self._hit = "", hit
        return whole[:end]

    def _rest(self, *, cut: bool) -> str:
        """The engine's end: what was held back was no stop string.

        A character that stayed unfinished is U+FFFD if the model itself stopped there; `cut` off by the limit, it is left out.
        """
        text = self._held if cut else self._held + self._decode(b"", last=True)
        self._held = ""
        return text

    def _marked(self, text: str, *, last: bool = False) -> Reading:
        if self._markup is None:
            return Reading(text)
        return self._markup.feed(text, last=last) if text or last else Reading()

    def _delta(self, reading: Reading, logprobs: list[TokenLogprob], output: SequenceOutput) -> Delta | None:
        delta = Delta(
            index=self.index,
            text=reading.text,
            reasoning=reading.reasoning,
            tool_calls=list(reading.calls) or UNSET,
            logprobs=logprobs or UNSET,
        )
        self._finish(delta, output)
        if not (reading.text or reading.reasoning or reading.calls or logprobs or self.finished):
            return None
        delta.tokens, self._told = self._tokens - self._told, self._tokens
        return delta

    def _finish(self, delta: Delta, output: SequenceOutput) -> None:
        """The finish reason, if this is the end: ours comes before the engine's."""
        reason = "stop" if self._over else output.finish_reason
        if reason is None:
            return
        self.finished = True
        called = self._markup is not None and self._markup.called
        delta.finish_reason = "tool_calls" if called and reason == "stop" else reason
        if self._hit:
            delta.stop_reason = self._hit.stop
        elif output.stop_token is not None and not self._over:
            delta.stop_reason = output.stop_token

    # --- log probabilities ---

    def _note(self, token: Token, data: bytes, begin: int) -> None:
        """Keep a token's log probability until its text is delivered."""
        self._logprob_sum += finite(token.logprob or 0.0)
        if self._options.logprobs:
            unfinished = bool(self._decoder.getstate()[0])
            self._entries.append(_Entry(begin, self._decoded + unfinished, self._entry(token, data)))

    def _entry(self, token: Token, data: bytes) -> TokenLogprob:
        top = token.top
        if self._options.chosen_in_top and token.logprob is not None and all(other.id != token.id for other in top):
            top = [*top, Candidate(token.id, data, token.logprob)]
        return TokenLogprob(
            bytes=data,
            logprob=token.logprob,
            top=[Alternative(bytes=other.data, logprob=other.logprob) for other in sorted(top, key=_unlikely)],
        )

    def _released(self, *, everything: bool) -> list[TokenLogprob]:
        """The log probabilities of the tokens whose text is delivered. At a stop string a token may be delivered in part."""
        made = []
        delivered = self._decoded - len(self._held)
        while self._entries:
            entry = self._entries[0]
            if not (everything or entry.end <= delivered or (self._hit and entry.begin < delivered)):
                break
            made.append(self._entries.popleft().logprob)
        return made


def _unlikely(candidate: Candidate) -> float:
    """Sorts the most likely first, and what is not a number last."""
    return math.inf if math.isnan(candidate.logprob) else -candidate.logprob
