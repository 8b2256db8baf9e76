"""Requests become plans, or are refused by name before anything starts."""

from array import array
from base64 import b64encode
from typing import Any

import pytest
from msgspec import UNSET, convert, structs

from schemas.openai.chat import ChatCompletionRequest
from schemas.openai.completions import CompletionRequest
from schemas.openai.errors import ServingError
from tests.fakes import ControlledEngine
from worker.engines.base import Capability, Engine, EngineFacts
from worker.engines.scripted import create
from worker.engines.scripted.model import BEGIN, VOCABULARY_SIZE
from worker.plan import Plan, SequencePlan, plan_chat, plan_completion

CONTEXT = 1000
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f"}}


class Planner:
    """Plans requests for an engine. Any: fields as a client would send them."""

    def __init__(self, engine: Engine, facts: EngineFacts) -> None:
        self.engine = engine
        self.facts = facts

    def chat(self, **fields: Any) -> Plan:
        request = convert({"model": "m", "messages": [USER], **fields}, ChatCompletionRequest)
        return plan_chat(request, self.engine, self.facts)

    def completion(self, prompt: Any = "hi", **fields: Any) -> Plan:
        request = convert({"model": "m", "prompt": prompt, **fields}, CompletionRequest)
        return plan_completion(request, self.engine, self.facts)

    def limited(self, **facts: Any) -> "Planner":
        """The same for a model with other facts."""
        return Planner(self.engine, structs.replace(self.facts, **facts))


@pytest.fixture
async def plan() -> Planner:
    """Plans for a model with a context of CONTEXT tokens."""
    engine = create(None, {"context_length": str(CONTEXT)})
    return Planner(engine, await engine.start())


def only(made: Plan) -> SequencePlan:
    """The one sequence of a plan."""
    (sequence,) = made.sequences
    return sequence


def text(sequence: SequencePlan) -> str:
    """What a prompt's tokens are as text."""
    return bytes(token for token in sequence.prompt if token < 256).decode()


class TestLimits:
    def test_chat_default(self, plan: Planner) -> None:
        """Chat may use all that the context leaves."""
        sequence = only(plan.chat())

        assert sequence.sampling.max_tokens == CONTEXT - len(sequence.prompt)

    def test_completion_default(self, plan: Planner) -> None:
        """Completions end after 16 tokens unless they say otherwise."""
        assert only(plan.completion()).sampling.max_tokens == 16
        assert only(plan.completion(max_tokens=None)).sampling.max_tokens == 16

    @pytest.mark.parametrize(
        ("fields", "limit"),
        [
            ({"max_tokens": 5}, 5),
            ({"max_completion_tokens": 3, "max_tokens": 50}, 3),
            ({"max_completion_tokens": None, "max_tokens": 7}, 7),
        ],
    )
    def test_explicit(self, plan: Planner, fields: dict[str, int], limit: int) -> None:
        """The newer name of the limit wins over the older one."""
        assert only(plan.chat(**fields)).sampling.max_tokens == limit

    def test_clamped(self, plan: Planner) -> None:
        """A limit beyond the context is what the context leaves."""
        assert only(plan.completion([1] * 990, max_tokens=2**31)).sampling.max_tokens == 10

    @pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 50])
    def test_prompt_too_long(self, plan: Planner, length: int) -> None:
        """A prompt that leaves no room is refused with the numbers and the code clients look for."""
        with pytest.raises(ServingError, match=str(length)) as refused:
            plan.completion([1] * length)
        assert (refused.value.param, refused.value.code) == ("prompt", "context_length_exceeded")

    def test_truncated(self, plan: Planner) -> None:
        """truncate_prompt_tokens keeps the end of a prompt."""
        assert only(plan.completion([*range(200)] * 10, truncate_prompt_tokens=2)).prompt == [198, 199]

    def test_min_tokens(self, plan: Planner) -> None:
        """min_tokens beyond the explicit limit is refused."""
        with pytest.raises(ServingError) as refused:
            plan.completion(min_tokens=9, max_tokens=8)
        assert refused.value.param == "min_tokens"


class Counting(ControlledEngine):
    """Says at once that a text has a token for each byte, as it has, and counts the texts that it is to tokenise."""

    tokenised = 0

    def fewest_tokens(self, text: str, enough: int) -> int:
        return len(text.encode())

    def tokenize(self, text: str, *, special: bool, add_special: bool) -> list[int]:
        self.tokenised += 1
        return super().tokenize(text, special=special, add_special=add_special)


class TestFarTooLong:
    """Tokenising takes seconds for what is known to be too long in milliseconds."""

    @pytest.fixture
    def engine(self) -> Counting:
        """An engine that tells how often it tokenised."""
        return Counting(context_length=CONTEXT)

    def test_it_is_refused_before_it_is_tokenised(self, engine: Counting) -> None:
        """By name, with what is known of its length."""
        plan, long = Planner(engine, engine.facts), "x" * CONTEXT
        with pytest.raises(ServingError, match=f"context length is {CONTEXT} tokens, .* at least {CONTEXT}:") as chat:
            plan.chat(messages=[{"role": "user", "content": long}])
        with pytest.raises(ServingError, match=f"at least {CONTEXT}:") as completion:
            plan.completion(long)

        assert (chat.value.param, chat.value.code) == ("messages", "context_length_exceeded")
        assert (completion.value.param, completion.value.code) == ("prompt", "context_length_exceeded")
        assert engine.tokenised == 0

    def test_one_that_is_to_be_cut_is_tokenised(self, engine: Counting) -> None:
        """Only the tokens that are left have to find room."""
        plan = Planner(engine, engine.facts)

        assert len(only(plan.completion("x" * CONTEXT, truncate_prompt_tokens=5)).prompt) == 5

    def test_one_that_fits_is_tokenised(self, engine: Counting) -> None:
        """The last token of the context is the answer's."""
        made = only(Planner(engine, engine.facts).completion("x" * (CONTEXT - 1)))

        assert (len(made.prompt), made.sampling.max_tokens) == (CONTEXT - 1, 1)

    def test_prompts_after_it_are_not_looked_at(self, engine: Counting) -> None:
        """A list of prompts is refused with the first that is too long, also if it came as tokens."""
        with pytest.raises(ServingError, match=f"the prompt has {CONTEXT}:"):
            Planner(engine, engine.facts).completion([[1] * CONTEXT, [10**6]])


class TestSampling:
    def test_null_is_default(self, plan: Planner) -> None:
        """Null means the default in every sampling field."""
        names = ["temperature", "top_p", "top_k", "min_p", "seed", "n", "stop", "logit_bias", "presence_penalty"]
        names += ["frequency_penalty", "min_tokens", "repetition_penalty", "stop_token_ids", "ignore_eos"]
        names += ["response_format", "tools", "tool_choice", "logprobs", "user"]

        assert only(plan.chat(**dict.fromkeys(names))).sampling == only(plan.chat()).sampling

    def test_top_k_off(self, plan: Planner) -> None:
        """top_k -1 is off, as 0 is."""
        assert only(plan.chat(top_k=-1)).sampling.top_k == 0

    def test_top_p_zero(self, plan: Planner) -> None:
        """An empty nucleus is greedy."""
        assert only(plan.chat(top_p=0)).sampling.temperature == 0

    def test_seeds(self, plan: Planner) -> None:
        """Choices have consecutive seeds, the same for every prompt, within 64 bits."""
        made = plan.completion(["a", "b"], n=2, seed=2**63 - 1)

        assert [sequence.sampling.seed for sequence in made.sequences] == [2**63 - 1, -(2**63)] * 2

    def test_logit_bias(self, plan: Planner) -> None:
        """Biases are by token id."""
        assert only(plan.chat(logit_bias={"65": -100})).sampling.logit_bias == {65: -100.0}

    @pytest.mark.parametrize("key", ["hello", "-1", str(VOCABULARY_SIZE), "1.5", "٣", "9" * 30, ""])
    def test_logit_bias_of_no_token(self, plan: Planner, key: str) -> None:
        """A bias for what is no token id of the model is refused."""
        with pytest.raises(ServingError) as refused:
            plan.chat(logit_bias={key: 1})
        assert (refused.value.status, refused.value.param) == (400, "logit_bias")

    def test_stop_token_ids(self, plan: Planner) -> None:
        """Stop token ids outside the vocabulary are refused."""
        with pytest.raises(ServingError) as refused:
            plan.chat(stop_token_ids=[1, VOCABULARY_SIZE])
        assert refused.value.param == "stop_token_ids"

    @pytest.mark.parametrize(("stop", "stops"), [("x", ["x"]), ("", []), ([], []), (["", "a", "a"], ["a"]), (None, [])])
    def test_stop(self, plan: Planner, stop: Any, stops: list[str]) -> None:
        """Empty stop strings are ignored."""
        assert [found.text for found in only(plan.chat(stop=stop)).output.stops] == stops


class TestLogprobs:
    def test_chat(self, plan: Planner) -> None:
        """Chat's logprobs is a switch, top_logprobs the number."""
        assert only(plan.chat()).sampling.logprobs is None
        assert only(plan.chat(logprobs=True)).sampling.logprobs == 0
        assert only(plan.chat(logprobs=True, top_logprobs=3)).sampling.logprobs == 3

    def test_top_without_logprobs(self, plan: Planner) -> None:
        """top_logprobs needs logprobs."""
        with pytest.raises(ServingError) as refused:
            plan.chat(top_logprobs=2)
        assert refused.value.param == "top_logprobs"

    def test_completion(self, plan: Planner) -> None:
        """Completions' logprobs is the number, and 0 still reports the chosen token."""
        assert only(plan.completion(logprobs=0)).output.logprobs
        assert not only(plan.completion(logprobs=None)).output.logprobs

    def test_echo(self, plan: Planner) -> None:
        """With echo the prompt's log probabilities are asked for."""
        assert only(plan.completion(echo=True, logprobs=2)).sampling.prompt_logprobs == 2


class TestCapabilities:
    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"logprobs": True}, "logprobs"),
            ({"logit_bias": {"1": 1}}, "logit_bias"),
            ({"response_format": {"type": "json_object"}}, "response_format"),
            ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ],
    )
    def test_chat(self, plan: Planner, fields: dict[str, Any], param: str) -> None:
        """What an engine does not declare is refused by name."""
        with pytest.raises(ServingError) as refused:
            plan.limited(capabilities=frozenset()).chat(**fields)
        assert (refused.value.param, refused.value.code) == (param, "unsupported_parameter")

    @pytest.mark.parametrize(("fields", "param"), [({"logprobs": 1}, "logprobs"), ({"best_of": 2}, "best_of")])
    def test_completion(self, plan: Planner, fields: dict[str, Any], param: str) -> None:
        """The same on the completions endpoint."""
        with pytest.raises(ServingError) as refused:
            plan.limited(capabilities=frozenset()).completion(**fields)
        assert refused.value.param == param


class TestRefused:
    @pytest.mark.parametrize(
        "fields",
        [
            {"use_beam_search": True},
            {"length_penalty": 2.0},
            {"early_stopping": "never"},
            {"lora_request": {"lora_name": "x"}},
            {"documents": [{"text": "x"}]},
            {"chat_template": "x"},
            {"audio": {"voice": "a"}},
            {"modalities": ["text", "audio"]},
            {"web_search_options": {}},
            {"functions": [{"name": "f"}]},
            {"function_call": {"name": "f"}},
            {"moderation": {}},
            {"thinking_token_budget": 5},
            {"cache_salt": "x"},
            {"echo": True},
            {"mm_processor_kwargs": {"a": 1}},
            {"media_io_kwargs": {"a": 1}},
            {"response_format": {"type": "regex", "regex": "a"}},
            {"response_format": {"type": "ebnf", "ebnf": "a"}},
            {"response_format": {"type": "structural_tag", "format": {}}},
        ],
        ids=lambda fields: next(iter(fields)),
    )
    def test_chat(self, plan: Planner, fields: dict[str, Any]) -> None:
        """What would change the answer and cannot be honoured is refused by name."""
        with pytest.raises(ServingError) as refused:
            plan.chat(**fields)
        assert (refused.value.param, refused.value.code) == (next(iter(fields)), "unsupported_parameter")

    @pytest.mark.parametrize(
        "fields",
        [{"suffix": "x"}, {"return_context_logits": True}, {"detokenize": False}],
        ids=lambda fields: next(iter(fields)),
    )
    def test_completion(self, plan: Planner, fields: dict[str, Any]) -> None:
        """The same for fields that only completions have."""
        with pytest.raises(ServingError) as refused:
            plan.completion(**fields)
        assert (refused.value.param, refused.value.code) == (next(iter(fields)), "unsupported_parameter")

    def test_neutral(self, plan: Planner) -> None:
        """Values that ask for what happens anyway, and fields that cannot change an answer, are accepted."""
        plan.chat(
            modalities=["text"], functions=[], function_call="auto", verbosity="medium", use_beam_search=False, metadata={},
            store=True, service_tier="auto", prediction={}, user="u", priority=0.5, echo=False, documents=[], stream_options=None,
        )  # fmt: skip
        plan.completion(best_of=1, detokenize=True, return_context_logits=False, suffix=None, stream=True)

    @pytest.mark.parametrize("stream", [None, False])
    def test_stream_options(self, plan: Planner, stream: Any) -> None:
        """Stream options without a stream are refused."""
        with pytest.raises(ServingError) as refused:
            plan.chat(stream=stream, stream_options={"include_usage": True})
        assert refused.value.param == "stream_options"

    @pytest.mark.parametrize(
        ("format_", "param"),
        [
            ({"type": "json_schema"}, "response_format.json_schema"),
            ({"type": "json_schema", "json_schema": {"name": "r"}}, "response_format.json_schema.schema"),
            (
                {"type": "json_schema", "json_schema": {"schema": {"type": "hiccup"}}},
                "response_format.json_schema.schema",
            ),
            ({"type": "json_schema", "json_schema": {"schema": False}}, "response_format.json_schema.schema"),
            ({"type": "json", "schema": {"properties": []}}, "response_format.schema"),
        ],
    )
    def test_schema(self, plan: Planner, format_: Any, param: str) -> None:
        """A response format without a usable schema is refused with its place."""
        with pytest.raises(ServingError) as refused:
            plan.chat(response_format=format_)
        assert refused.value.param == param

    def test_deep_schema(self, plan: Planner) -> None:
        """A schema nested too deeply is refused, not followed."""
        schema: dict[str, Any] = {}
        for _ in range(200):
            schema = {"items": schema}
        with pytest.raises(ServingError, match="levels deep"):
            plan.chat(response_format={"type": "json_schema", "json_schema": {"schema": schema}})


class TestChat:
    def test_prompt(self, plan: Planner) -> None:
        """The prompt is the rendered template, its markers read as tokens."""
        sequence = only(plan.chat())

        assert text(sequence) == "user\nhi\nassistant\n"
        assert sequence.prompt[0] > 255

    def test_no_generation_prompt(self, plan: Planner) -> None:
        """A client may leave out the beginning of the answer."""
        assert text(only(plan.chat(add_generation_prompt=False))) == "user\nhi\n"

    @pytest.mark.parametrize(
        "fields",
        [
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"thinking": {"type": "disabled"}},
            {"reasoning_effort": "none"},
        ],
    )
    def test_thinking_off(self, plan: Planner, fields: dict[str, Any]) -> None:
        """Every way to turn thoughts off reaches the template."""
        assert text(only(plan.chat(**fields))).endswith("<think>\n\n</think>\n\n")

    def test_handed_over(self, plan: Planner) -> None:
        """Token ids from a context leg are the prompt, in either form."""
        encoded = b64encode(array("i", [1, 2, 3]).tobytes()).decode()

        assert only(plan.chat(prompt_token_ids=[1, 2, 3])).prompt == [1, 2, 3]
        assert only(plan.chat(prompt_token_ids_b64=encoded)).prompt == [1, 2, 3]

    @pytest.mark.parametrize("id_", [VOCABULARY_SIZE, -1])
    def test_handed_over_nonsense(self, plan: Planner, id_: int) -> None:
        """Ids that are no tokens are refused."""
        with pytest.raises(ServingError):
            plan.chat(prompt_token_ids_b64=b64encode(array("i", [id_]).tobytes()).decode())

    def test_open_thought(self, plan: Planner) -> None:
        """A prompt that ends inside a thought is noticed, also when it came as ids."""
        ids = list(b"x<think>\n")
        markup = only(plan.chat(prompt_token_ids=ids)).output.markup

        assert markup is not None
        assert markup.thinking

    def test_plain_model(self, plan: Planner) -> None:
        """Without tools and thoughts the text is not searched for tags."""
        plain = plan.limited(chat_template="{% for message in messages %}{{ message.content }}{% endfor %}")

        assert only(plain.chat()).output.markup is None

    def test_documents(self, plan: Planner) -> None:
        """Documents go to a template that has a place for them."""
        grounded = plan.limited(
            chat_template="{{ messages[0].content }}{% for d in documents %}{{ d.text }}{% endfor %}"
        )

        assert text(only(grounded.chat(documents=[{"text": " doc"}]))) == "hi doc"

    def test_native_tools(self, plan: Planner) -> None:
        """A template with a place for tools gets them there."""
        native = plan.limited(chat_template="{% for tool in tools %}{{ tool.function.name }}{% endfor %}")

        assert text(only(native.chat(tools=[TOOL]))) == "f"

    def test_forced_call(self, plan: Planner) -> None:
        """A forced call constrains the output."""
        sequence = only(plan.chat(tools=[TOOL], tool_choice="required"))

        assert sequence.sampling.constraint is not None
        assert sequence.output.markup is not None
        assert sequence.output.markup.forced

    def test_call_or_answer_in_a_form(self, plan: Planner) -> None:
        """Tools on offer beside a JSON format constrain the output to either; another format leaves no room for a call."""
        sequence = only(plan.chat(tools=[TOOL], response_format={"type": "json_object"}))
        able = plan.limited(capabilities=frozenset(Capability))

        assert sequence.sampling.constraint is not None
        assert sequence.output.markup is not None
        assert sequence.output.markup.names == {"f"}
        with pytest.raises(ServingError) as refused:
            able.chat(tools=[TOOL], response_format={"type": "regex", "regex": "a"})
        assert refused.value.param == "response_format"

    def test_no_content(self, plan: Planner) -> None:
        """Refused messages are refused also when the prompt comes as ids."""
        with pytest.raises(ServingError) as refused:
            plan.chat(messages=[{"role": "user"}], prompt_token_ids=[1])
        assert refused.value.param == "messages[0].content"


class TestCompletions:
    @pytest.mark.parametrize(
        ("prompt", "prompts"),
        [
            ("a", [[BEGIN, 97]]),
            (["a", "b"], [[BEGIN, 97], [BEGIN, 98]]),
            ([97, 98], [[97, 98]]),
            ([[97], [98]], [[97], [98]]),
            ("", [[BEGIN]]),
            ([[]], [[BEGIN]]),
        ],
    )
    def test_prompts(self, plan: Planner, prompt: Any, prompts: list[list[int]]) -> None:
        """Every form of a prompt; an empty one is the begin token."""
        made = plan.completion(prompt)

        assert made.prompts == prompts
        assert made.prompt_tokens == sum(map(len, prompts))

    def test_no_special_tokens(self, plan: Planner) -> None:
        """A client may leave out the begin token."""
        assert only(plan.completion("a", add_special_tokens=False)).prompt == [97]

    def test_indices(self, plan: Planner) -> None:
        """Choices are numbered by prompt, then by n; prompt tokens count once."""
        made = plan.completion(["a", "b"], n=3)

        assert [sequence.index for sequence in made.sequences] == list(range(6))
        assert [sequence.prompt[-1] for sequence in made.sequences] == [97] * 3 + [98] * 3
        assert made.prompt_tokens == 4

    def test_too_many(self, plan: Planner) -> None:
        """Prompts times n is bounded, and the limit is named."""
        with pytest.raises(ServingError, match="at most 128"):
            plan.completion(["a"] * 65, n=2)

    def test_not_in_vocabulary(self, plan: Planner) -> None:
        """Ids that are no tokens of the model are refused."""
        with pytest.raises(ServingError) as refused:
            plan.completion([[1], [VOCABULARY_SIZE]])
        assert refused.value.param == "prompt"

    @pytest.mark.parametrize(
        ("prompt", "echo"),
        [("h<|im_end|>é", "h<|im_end|>é"), ([104, 105, 258], "hi<|im_end|>"), ([BEGIN, 104], "h"), ("", "")],
    )
    def test_echo(self, plan: Planner, prompt: Any, echo: str) -> None:
        """The echo is the prompt as it was sent, or the text of its ids; a begin token is not part of it."""
        assert only(plan.completion(prompt, echo=True)).output.echo == echo

    def test_echo_truncated(self, plan: Planner) -> None:
        """What was cut from a prompt is not echoed."""
        assert only(plan.completion("abc", echo=True, truncate_prompt_tokens=2)).output.echo == "bc"

    @pytest.mark.parametrize(("echo", "text_"), [(True, "hi"), (False, "")])
    def test_no_tokens(self, plan: Planner, echo: bool, text_: str) -> None:
        """Asked for no tokens, the answer is there without the engine."""
        settled = only(plan.completion(max_tokens=0, echo=echo)).settled

        assert settled is not None
        assert (settled.text, settled.finish_reason, settled.tokens, settled.logprobs) == (text_, "length", 0, UNSET)

    def test_no_tokens_but_logprobs(self, plan: Planner) -> None:
        """For the prompt's log probabilities the engine runs, and what it generates is nobody's."""
        sequence = only(plan.completion(max_tokens=0, echo=True, logprobs=1))

        assert (sequence.settled, sequence.sampling.max_tokens, sequence.output.prompt_only) == (None, 1, True)

    def test_no_tokens_in_chat(self, plan: Planner) -> None:
        """A chat answer has at least one token."""
        with pytest.raises(ServingError) as refused:
            plan.chat(max_tokens=0)
        assert refused.value.param == "max_tokens"


class TestBestOf:
    def test_candidates(self, plan: Planner) -> None:
        """More sequences run than are kept, ranked by log probabilities that nobody else sees."""
        made = plan.completion(["a", "b"], n=1, best_of=3)

        assert (made.n, made.candidates, len(made.sequences)) == (1, 3, 6)
        assert made.sequences[0].sampling.logprobs == 0
        assert not made.sequences[0].output.logprobs

    def test_best(self, plan: Planner) -> None:
        """Of each prompt's candidates the best become its choices, best first."""
        made = plan.completion(["a", "b"], n=2, best_of=3)

        assert made.best([-3.0, -1.0, -2.0, -1.0, -2.0, -3.0]) == [1, 2, 3, 4]

    def test_all(self, plan: Planner) -> None:
        """Without best_of every sequence is a choice, in order."""
        assert plan.completion(["a", "b"], n=2).best([0.0] * 4) == [0, 1, 2, 3]

    @pytest.mark.parametrize("fields", [{"n": 3, "best_of": 2}, {"best_of": 2, "stream": True}])
    def test_refused(self, plan: Planner, fields: dict[str, Any]) -> None:
        """best_of below n, or streamed, is refused."""
        with pytest.raises(ServingError) as refused:
            plan.completion(**fields)
        assert refused.value.param == "best_of"
