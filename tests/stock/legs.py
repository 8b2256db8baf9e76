"""One request at a stock worker: which leg it is, and what that leg makes."""

from dataclasses import dataclass
from typing import Any

from tests.stock import disagg, replies
from tests.stock.behaviour import Behaviour
from tests.stock.disagg import HandedOver, Ledger, Refused
from tests.stock.model import Sequence, answer, first_token_only, prompts_of
from tests.stock.protocol import Generation
from tests.stock.recording import Recorded
from tests.stock.versions import Version

Json = dict[str, Any]


@dataclass(frozen=True)
class Leg:
    """What is to be answered: the choices in the order of their indices, the counts, and a context leg's hand-off."""

    choices: list[Sequence]
    prompt_tokens: int
    cached_tokens: int
    params: Json | None = None

    def usage(self, completion_tokens: int | None = None) -> Json:
        """The counts, at the end or after so many tokens."""
        made = sum(len(choice.tokens) for choice in self.choices) if completion_tokens is None else completion_tokens
        return replies.usage(self.prompt_tokens, made, self.cached_tokens)


@dataclass(frozen=True)
class Legs:
    """Makes the legs of one worker."""

    behaviour: Behaviour
    ledger: Ledger
    key: str | None
    server_keys: Json
    version: Version

    async def leg(self, request: Generation, recorded: Recorded) -> Leg:
        """The leg a request asks for."""
        params = request.disaggregated_params
        if params is None or params.request_type == "context_and_generation":
            return self._aggregated(request)
        if params.request_type == "context_only":
            return await self._context(request, recorded)
        return await self._generation(request, recorded)

    def _aggregated(self, request: Generation) -> Leg:
        prompts = prompts_of(request)
        return Leg(_choices(request, prompts), sum(map(len, prompts)), self.behaviour.cached_tokens)

    async def _context(self, request: Generation, recorded: Recorded) -> Leg:
        params, prompts = request.disaggregated_params, prompts_of(request)
        if params is None or len(prompts) != 1 or request.stream:
            raise Refused("a context leg takes one prompt and does not stream")
        choices = [first_token_only(choice) for choice in _choices(request, prompts)]
        ended = self.behaviour.early_finish or choices[0].finish_reason == "stop"
        if ended:
            choices = [Sequence(choice.prompt, choice.tokens, "stop") for choice in choices]
        tokens = [token.id for token in choices[0].tokens]
        made = disagg.context_params(params, self.ledger, self.behaviour, tokens, ended=ended)
        made = self.version.answer(made, recorded.decoded()["disaggregated_params"])
        leg = Leg(choices, len(prompts[0]), self.behaviour.cached_tokens, made)
        await self._hand_over(request, leg, prompts[0])
        return leg

    async def _hand_over(self, request: Generation, leg: Leg, prompt: list[int]) -> None:
        params = leg.params or {}
        if params["schedule_style"] == disagg.GENERATION_FIRST:
            meeting = self.ledger.meeting(params["disagg_request_id"])
            await meeting.generation_is_here.wait()
            meeting.usage = leg.usage()
            meeting.context_is_done.set()
        elif params["disagg_request_id"] is not None:
            b64 = disagg.prompt_ids(request, prompt).get("prompt_token_ids_b64")
            self.ledger.handed[params["disagg_request_id"]] = HandedOver(params, leg.usage(), prompt, b64)

    async def _generation(self, request: Generation, recorded: Recorded) -> Leg:
        body = recorded.decoded()
        params = body["disaggregated_params"]
        disagg.check_signature(self.key, params, recorded.headers)
        if params.get("schedule_style") == disagg.GENERATION_FIRST:
            return await self._generation_first(request, params)
        handed = disagg.handed_over(body, self.ledger, self.version)
        choices = _choices(request, [handed.prompt])
        if params["first_gen_tokens"] != [token.id for token in choices[0].tokens[:1]]:
            raise Refused("the first token is not the one the context leg sampled")
        return self._with_context_usage(choices, params["ctx_usage"])

    async def _generation_first(self, request: Generation, params: Json) -> Leg:
        disagg.check_generation_first(params, self.server_keys)
        meeting = self.ledger.meeting(params["disagg_request_id"])
        meeting.generation_is_here.set()
        await meeting.context_is_done.wait()
        return self._with_context_usage(_choices(request, prompts_of(request)), meeting.usage)

    def _with_context_usage(self, choices: list[Sequence], usage: Json) -> Leg:
        details = usage["prompt_tokens_details"] or {"cached_tokens": 0}
        return Leg(choices, usage["prompt_tokens"], details["cached_tokens"])


def _choices(request: Generation, prompts: list[list[int]]) -> list[Sequence]:
    return [answer(request, prompt, number) for prompt in prompts for number in range(request.n or 1)]
