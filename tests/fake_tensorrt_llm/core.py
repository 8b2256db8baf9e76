"""What both versions' LLM is made of: arguments checked, requests brought to the executor, states to the exchange."""

import asyncio
import pickle
from collections.abc import AsyncIterator
from itertools import count
from typing import Any, Final, NamedTuple

from tests.fake_tensorrt_llm.executor import Executor, Job
from tests.fake_tensorrt_llm.model import VOCABULARY, Answer, RequestError, key_of, marked, prompt_logits
from tests.fake_tensorrt_llm.result import Logprob, RequestOutput, Response
from tests.fake_tensorrt_llm.tokenizer import FastTokenizer, TransformersTokenizer
from tests.fake_tensorrt_llm.transfer import EXCHANGE, Handed, opaque

ENDPOINT: Final = "tcp://127.0.0.1:5555"
"""Where generation engines of the newer version find a context engine."""


class Arguments(NamedTuple):
    """llm.args, as much of it as is read."""

    max_batch_size: int
    max_seq_len: int | None


class ModelConfig(NamedTuple):
    """The model's own config.json."""

    vocab_size: int = VOCABULARY
    max_position_embeddings: int = 2048


class Core:
    """The LLM without its signatures. `two_ids`: hand-offs go by `disagg_request_id`, log probabilities and usage travel, and there
    are two orders. Any: objects of either version.
    """

    two_ids = False
    known: frozenset[str] = frozenset()

    def __init__(self, arguments: dict[str, Any]) -> None:
        for name in arguments:
            if name not in self.known:
                raise ValueError(f"LLM got invalid argument: {name}")
        if arguments["model"] == "no-such-model":
            raise RuntimeError("no such model")
        self.given = arguments
        self.args = Arguments(arguments.get("max_batch_size") or 2048, arguments.get("max_seq_len"))
        self.executor = Executor(self.args.max_batch_size)
        self._hf_model_config = ModelConfig()
        self._numbers = count(1)
        self._told: list[dict[str, Any]] = []
        self.tokenizer = TransformersTokenizer(FastTokenizer())
        self.asked: list[dict[str, Any]] = []

    # --- a request ---

    def ask(self, prompt: Any, sampling: Any, params: Any, **others: Any) -> RequestOutput:
        """What generate_async does. `others` are only recorded. Any: inputs may be anything until they are checked."""
        if self.executor.dead or self.executor.closed:
            raise RuntimeError("LLM is shutting down")
        if not isinstance(prompt, list) or not all(isinstance(token, int) for token in prompt):
            raise TypeError(f"The inputs must be type str or list of int, but got {type(prompt)}")
        # They cross to another process.
        sampling = pickle.loads(pickle.dumps(sampling))  # noqa: S301 - our own bytes
        if sampling.embedding_bias is not None and len(sampling.embedding_bias) != VOCABULARY:
            raise ValueError("embedding_bias must have the size of the vocabulary")
        if sampling.guided_decoding is not None and "guided_decoding_backend" not in self.given:
            raise ValueError("guided decoding needs a backend")
        if params is not None and not self.given.get("cache_transceiver_config"):
            raise ValueError("disaggregated serving needs a cache transceiver")
        self.asked.append({"sampling": sampling, "params": params, **others})
        kind = None if params is None else params.request_type
        if kind == "context_only":
            sampling.max_tokens = 1
        result = RequestOutput(self._request_id(params), prompt, self.executor.abort)
        job = Job(result, sampling, sampling.max_tokens)
        prefill = self._generation(job, params) if kind == "generation_only" else self._context(job, params)
        self.executor.submit(job, prefill)
        return result

    def _request_id(self, params: Any) -> int:
        """Both legs of a request have the orchestrator's id, where there is one."""
        given = params.disagg_request_id if params is not None and self.two_ids else None
        return next(self._numbers) if given is None or params.request_type == "generation_only" else int(given)

    async def _context(self, job: Job, params: Any) -> None:
        """A prefill; of a context leg, what it hands over is sealed with its token."""
        marks = marked(job.result.prompt_token_ids)
        await asyncio.sleep(float(marks.get("ttft_ms", 0)) / 1000)
        prompt = job.result.prompt_token_ids
        key = key_of(prompt, job.params)
        job.result.cached_tokens = int(marks.get("cached", 0))
        if job.params.return_context_logits:
            job.result.context_logits = prompt_logits(prompt)
        answer = Answer(prompt, job.params, key)
        self._told.append({"type": "stored", "tokens": len(prompt)})
        if params is not None:
            if self._early(params):
                await EXCHANGE.wanted(job.result.request_id)
            job.seal = lambda response: self._sealed(job, key, response)
        job.answer = answer

    def _sealed(self, job: Job, key: bytes, response: Response) -> Response:
        if response.finish_reason == "stop":
            return response
        request_id, tokens = job.result.request_id, list(response.tokens)
        state = opaque(request_id, key)
        usage = {"prompt_tokens_details": {"cached_tokens": job.result.cached_tokens}}
        EXCHANGE.put(request_id, Handed(key, tokens, state, usage))
        said = {"first_gen_tokens": tokens, "ctx_request_id": request_id, "opaque_state": state}
        if self.two_ids:
            said |= {"disagg_request_id": request_id, "ctx_dp_rank": 0, "ctx_info_endpoint": ENDPOINT}
            said["first_gen_log_probs"] = list(response.logprobs) or None
        reason = "not_finished" if self.two_ids else "length"
        return response._replace(finish_reason=reason, params=self.handed(request_type="context_only", **said))

    async def _generation(self, job: Job, params: Any) -> None:
        """A context leg's state taken over: its tokens are replayed first."""
        if self._early(params):
            handed = await EXCHANGE.meet(params.disagg_request_id)
            job.seal = lambda response: response._replace(params=self.handed(ctx_usage=handed.usage))
        else:
            named = params.disagg_request_id if self.two_ids else None
            found = EXCHANGE.take(params.ctx_request_id if named is None else named, params.opaque_state)
            if found is None or params.first_gen_tokens != found.tokens:
                raise RequestError("KV cache transfer failed")
            handed = found
        job.replayed = [(token, self._replayed(params, place)) for place, token in enumerate(handed.tokens)]
        job.answer = Answer(job.result.prompt_token_ids, job.params, handed.key, said=len(handed.tokens))

    def _replayed(self, params: Any, place: int) -> dict[int, Logprob] | None:
        told = params.first_gen_log_probs if self.two_ids else None
        found: dict[int, Logprob] | None = told[place] if told else None
        return found

    def _early(self, params: Any) -> bool:
        return self.two_ids and params.schedule_style == 1

    def handed(self, **said: Any) -> Any:
        """A DisaggregatedParams of the version's own."""
        raise NotImplementedError

    # --- what it tells ---

    async def told(self) -> AsyncIterator[dict[str, Any]]:
        """What has happened since the last time; an empty queue is an IndexError, as the library has it."""
        while True:
            yield self._told.pop(0)

    def shutdown(self) -> None:
        """End everything."""
        self.executor.shutdown()

    def _check_health(self) -> bool:
        return not (self.executor.dead or self.executor.closed)
