"""Tools offered, tools called: choice, forced form, and calls read out of what a model writes."""

import json
from typing import Any

import pytest
from hypothesis import given, strategies
from jsonschema import Draft202012Validator, ValidationError
from msgspec import UNSET, convert

from schemas.events import Delta, Done
from schemas.openai.chat import ChatCompletion, ChatCompletionRequest, FunctionCall, FunctionDefinition
from schemas.openai.errors import ServingError
from schemas.openai.stream import Fold, StreamHead
from schemas.openai.usage import Usage
from worker.engines.base import Constraint, SequenceOutput, Token
from worker.markup import MarkupOptions
from worker.output import OutputOptions, SequenceReader
from worker.tools import call_text, forced_schema, offer_text, tool_use

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Par\\"is {"}}\n</tool_call>'

READ_TOOLS = MarkupOptions(tools=True)
READ_BOTH = MarkupOptions(tools=True, reasoning=True)


def request(**fields: Any) -> ChatCompletionRequest:
    """A chat request with these fields. Any: as a client would send them."""
    return convert({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}, ChatCompletionRequest)


def deltas(chunks: list[str], markup: MarkupOptions, finish: Any = "stop") -> list[Delta]:
    """What a reader makes of a text that comes in these chunks."""
    reader = SequenceReader(0, OutputOptions(token_bytes=lambda _: b"", markup=markup))
    outputs = [SequenceOutput(tokens=[Token(id=0, data=chunk.encode())]) for chunk in chunks]
    made = []
    for output in [*outputs, SequenceOutput(finish_reason=finish)]:
        delta = None if reader.finished else reader.feed(output)
        made += [delta] if delta else []
    return made


def answer(text: str | list[str], markup: MarkupOptions = READ_TOOLS, finish: Any = "stop") -> ChatCompletion:
    """The whole reply for a text, in one chunk or several."""
    fold = Fold(StreamHead(id="1", model="m"))
    for delta in deltas([text] if isinstance(text, str) else text, markup, finish):
        fold.add(delta)
    fold.add(Done(usage=Usage()))
    return fold.chat()


def calls(reply: ChatCompletion) -> list[tuple[str, str]]:
    """The names and arguments of a reply's tool calls."""
    made = reply.choices[0].message.tool_calls or []
    return [(call.function.name, call.function.arguments) for call in made if call.function]


class TestChoice:
    def test_default(self) -> None:
        """With tools and without a choice the model may call, none is forced."""
        use = tool_use(request(tools=[WEATHER]))

        assert (len(use.offer), use.forced, use.constraint) == (1, [], None)

    @pytest.mark.parametrize(
        "fields", [{}, {"tools": []}, {"tools": None}, {"tools": [WEATHER], "tool_choice": "none"}]
    )
    def test_none(self, fields: dict[str, Any]) -> None:
        """Without tools, or told to call none, nothing is offered."""
        assert tool_use(request(**fields)).offer == []

    @pytest.mark.parametrize(("mode", "forced"), [("auto", []), ("required", ["clock"])])
    def test_allowed_tools(self, mode: str, forced: list[str]) -> None:
        """Allowed tools are the only ones on offer, and with the mode `required` one of them must be called."""
        allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "clock"}}]}
        choice = {"type": "allowed_tools", "allowed_tools": allowed}
        use = tool_use(request(tools=[WEATHER, CLOCK], tool_choice=choice))

        assert [tool.function.name for tool in use.offer] == ["clock"]
        assert [function.name for function in use.forced] == forced

    def test_nested_too_deeply(self) -> None:
        """Parameters nested beyond what can be written out again are refused, enforced or not."""
        deep: dict[str, Any] = {}
        for _ in range(300):
            deep = {"default": [deep]}
        with pytest.raises(ServingError, match="nested"):
            tool_use(request(tools=[{"type": "function", "function": {"name": "f", "parameters": deep}}]))

    def test_too_many(self) -> None:
        """The number of tools is bounded."""
        with pytest.raises(ServingError, match="at most 1024"):
            tool_use(request(tools=[WEATHER] * 1025))

    def test_named_not_listed(self) -> None:
        """A function that is not on offer cannot be chosen."""
        with pytest.raises(ServingError, match="nope"):
            tool_use(request(tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "nope"}}))

    def test_named(self) -> None:
        """A named function is forced alone."""
        use = tool_use(request(tools=[WEATHER, CLOCK], tool_choice={"type": "function", "function": {"name": "clock"}}))

        assert [function.name for function in use.forced] == ["clock"]

    def test_parameters_that_are_no_schema(self) -> None:
        """The parameters of a forced function must be a schema; the place is named."""
        broken = {"type": "function", "function": {"name": "f", "parameters": {"type": "hiccup"}}}
        with pytest.raises(ServingError) as refused:
            tool_use(request(tools=[WEATHER, broken], tool_choice="required"))
        assert refused.value.param == "tools[1].function.parameters"


class TestForcedForm:
    def validator(self, *functions: FunctionDefinition) -> Draft202012Validator:
        schema = json.loads(forced_schema(list(functions)))
        Draft202012Validator.check_schema(schema)
        return Draft202012Validator(schema)

    def test_one(self) -> None:
        """A call has the function's name and arguments that are an object."""
        check = self.validator(FunctionDefinition(name="f"))

        check.validate({"name": "f", "arguments": {}})
        with pytest.raises(ValidationError):
            check.validate({"name": "f", "arguments": 5})

    def test_several(self) -> None:
        """Of several functions each is called with its own arguments."""
        number = {"properties": {"n": {"type": "integer"}}, "required": ["n"]}
        check = self.validator(FunctionDefinition(name="f"), FunctionDefinition(name="g", parameters=number))

        check.validate({"name": "g", "arguments": {"n": 1}})
        with pytest.raises(ValidationError):
            check.validate({"name": "g", "arguments": {}})

    def test_definitions(self) -> None:
        """Definitions of two functions do not mix, though they have the same name."""
        functions = [
            FunctionDefinition(
                name=f"f_{kind}",
                parameters={
                    "properties": {"x": {"$ref": "#/$defs/X"}},
                    "required": ["x"],
                    "$defs": {"X": {"type": kind}},
                },
            )
            for kind in ("integer", "string")
        ]
        check = self.validator(*functions)

        check.validate({"name": "f_integer", "arguments": {"x": 1}})
        check.validate({"name": "f_string", "arguments": {"x": "1"}})
        with pytest.raises(ValidationError):
            check.validate({"name": "f_string", "arguments": {"x": 1}})

    def test_recursive_parameters(self) -> None:
        """Parameters that refer to themselves still do inside the call."""
        tree = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}
        check = self.validator(FunctionDefinition(name="f", parameters=tree))

        check.validate({"name": "f", "arguments": {"next": {"next": {}}}})
        with pytest.raises(ValidationError):
            check.validate({"name": "f", "arguments": {"next": {"name": "f"}}})


class TestToolsAsText:
    def test_offer(self) -> None:
        """The system prompt holds each tool as a line of JSON."""
        lines = offer_text(tool_use(request(tools=[WEATHER, CLOCK])).offer).splitlines()

        assert json.loads(lines[lines.index("<tools>") + 2]) == CLOCK

    @pytest.mark.parametrize(
        ("arguments", "shown"), [('{"a":1}', '{"a":1}'), ("", "{}"), ("[1,2]", "[1,2]"), ("{not", '"{not"')]
    )
    def test_call(self, arguments: str, shown: str) -> None:
        """An earlier call stands as the model would write it; broken arguments are a string there."""
        text = call_text(FunctionCall(name="f", arguments=arguments))

        assert text == f'<tool_call>\n{{"name": "f", "arguments": {shown}}}\n</tool_call>'


class TestCalls:
    def test_one(self) -> None:
        """A call becomes a tool call without content, and the finish reason says so."""
        reply = answer(CALL)

        assert calls(reply) == [("weather", '{"city": "Par\\"is {"}')]
        assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == (None, "tool_calls")

    def test_with_words(self) -> None:
        """Words before a call are content."""
        reply = answer(f"Let me look. {CALL}\n")

        assert reply.choices[0].message.content == "Let me look. "

    def test_several(self) -> None:
        """Each call has an index and an id of its own."""
        reply = answer(f"{CALL}\n{CALL}")
        ids = [call.id for call in reply.choices[0].message.tool_calls or []]

        assert len(calls(reply)) == len(set(ids)) == 2
        assert all(id_ and id_.startswith("call_") for id_ in ids)

    def test_only_one_wanted(self) -> None:
        """Without parallel calls the answer ends with the first one."""
        reply = answer([*CALL, *CALL], MarkupOptions(tools=True, single_call=True), finish="length")

        assert (len(calls(reply)), reply.choices[0].finish_reason) == (1, "tool_calls")

    def test_streamed(self) -> None:
        """Id, type and name come first and once, then the arguments piece by piece."""
        made = [piece for delta in deltas(list(CALL), READ_TOOLS) for piece in delta.tool_calls or []]
        first, *rest = made

        assert first.function
        assert first.function.name == "weather"
        assert (first.type, first.index) == ("function", 0)
        assert len(rest) > 5
        assert all((piece.id, piece.type) == (UNSET, UNSET) for piece in rest)

    @pytest.mark.parametrize("chunks", [[CALL + CALL], list(CALL + CALL)], ids=["one chunk", "characters"])
    def test_several_streamed(self, chunks: list[str]) -> None:
        """The pieces of each call carry its own index, in the order of the calls, so that no client mixes their arguments."""
        made = [piece for delta in deltas(chunks, READ_TOOLS) for piece in delta.tool_calls or []]
        arguments = [
            "".join(str(piece.function.arguments) for piece in made if piece.index == index and piece.function)
            for index in (0, 1)
        ]

        assert [piece.index for piece in made] == sorted(piece.index for piece in made)
        assert {piece.index for piece in made} == {0, 1}
        assert arguments[0] == arguments[1] == calls(answer(CALL))[0][1]

    @pytest.mark.parametrize(
        "body",
        [
            '{"arguments": {"a": 1}, "name": "f"}',
            '{"name": "f", "parameters": {"a": 1}}',
            '{"name": "f", "arguments": "{\\"a\\": 1}"}',
            '[{"name": "f", "arguments": {"a": 1}}]',
        ],
    )
    def test_other_ways_to_write_it(self, body: str) -> None:
        """Keys in another order, arguments as a string, or a list of calls are calls too."""
        (name, arguments), *rest = calls(answer(f"<tool_call>{body}</tool_call>"))

        assert (name, json.loads(arguments), rest) == ("f", {"a": 1}, [])

    @pytest.mark.parametrize(
        "text", ["<tool_call>no</tool_call>", "<tool_call>{}</tool_call> x", "<tool", "a <tool_call>"]
    )
    def test_what_is_no_call(self, text: str) -> None:
        """What is no call after all is content, unchanged."""
        reply = answer(text)

        assert (reply.choices[0].message.content, calls(reply)) == (text, [])

    def test_without_closing_tag(self) -> None:
        """A model that forgets the closing tag has still made its call."""
        assert len(calls(answer(CALL.removesuffix("</tool_call>")))) == 1

    def test_tag_inside_arguments(self) -> None:
        """A closing tag inside a text of the arguments does not end the call."""
        body = '{"name": "f", "arguments": {"x": "</tool_call>"}}'

        assert calls(answer(f"<tool_call>{body}</tool_call>")) == [("f", '{"x": "</tool_call>"}')]

    def test_truncated(self) -> None:
        """A call cut by the token limit keeps what there is of it, and the finish reason stays length."""
        reply = answer('<tool_call>{"name": "f", "arguments": {"a": "x', finish="length")

        assert calls(reply) == [("f", '{"a": "x')]
        assert reply.choices[0].finish_reason == "length"

    @pytest.mark.parametrize("text", ["  x ", " ", "a < b", "<b>bold</b>"])
    def test_plain_text(self, text: str) -> None:
        """Text without a call is content to the letter, white space included."""
        assert answer(text).choices[0].message.content == text

    def test_forced(self) -> None:
        """A forced call needs no tags."""
        reply = answer('{"name": "f", "arguments": {"a": 1}} ', MarkupOptions(forced=True))

        assert calls(reply) == [("f", '{"a": 1}')]
        assert reply.choices[0].finish_reason == "tool_calls"

    @pytest.mark.parametrize(
        ("text", "called", "content"),
        [
            ('{"name": "f", "arguments": {"a": ', [("f", '{"a": ')], None),
            ('{"name": "f', [], '{"name": "f'),
        ],
    )
    def test_forced_and_truncated(self, text: str, called: list[tuple[str, str]], content: str | None) -> None:
        """A forced call that was cut keeps its arguments so far; cut before them it is content. The reason stays length."""
        reply = answer(text, MarkupOptions(forced=True), finish="length")

        assert (calls(reply), reply.choices[0].message.content) == (called, content)
        assert reply.choices[0].finish_reason == "length"


EITHER = MarkupOptions(forced=True, names=frozenset({"weather"}))
CAT: dict[str, Any] = {"$ref": "#/$defs/cat", "$defs": {"cat": {"type": "object", "required": ["age"]}}}


class TestCallInsteadOfAnAnswer:
    @pytest.mark.parametrize(
        "text",
        [
            '{"age": 3}',
            '{"name": "Tom", "age": 3}',
            '{"name": "Tom", "arguments": {"a": 1}}',
            "{}",
            "[1]",
            ' "a"',
            '{"name": "we',
        ],
    )
    @pytest.mark.parametrize("size", [1, 3, 100])
    def test_answer(self, text: str, size: int) -> None:
        """What calls none of the functions on offer is the answer, word for word, however it comes."""
        reply = answer([text[at : at + size] for at in range(0, len(text), size)], EITHER)

        assert (reply.choices[0].message.content, reply.choices[0].finish_reason, calls(reply)) == (text, "stop", [])

    def test_call(self) -> None:
        """What calls one of them is a call."""
        reply = answer('{"name": "weather", "arguments": {"city": "Paris"}}', EITHER)

        assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == (None, "tool_calls")
        assert calls(reply) == [("weather", '{"city": "Paris"}')]

    def test_answer_is_streamed(self) -> None:
        """An answer is not held back longer than its first key."""
        assert [delta.text for delta in deltas(['{"age', '": ', "3}"], EITHER)][:2] == ['{"age": ', "3}"]

    def test_form(self) -> None:
        """The form allows the answer or a call, and keeps their definitions apart."""
        format_ = {"type": "json_schema", "json_schema": {"name": "a", "schema": CAT}}
        use = tool_use(request(tools=[WEATHER], response_format=format_))
        form = json.loads(use.beside(Constraint(kind="json_schema", text=json.dumps(CAT))).text)

        for fits in ({"age": 3}, {"name": "weather", "arguments": {}}):
            Draft202012Validator(form).validate(fits)
        assert not Draft202012Validator(form).is_valid({"name": "Tom"})


class TestReasoning:
    def test_split(self) -> None:
        """Thoughts are told apart from the answer, without the layout around the tags."""
        message = answer("<think>\nhm, 1 < 2\n</think>\n\nYes.", READ_BOTH).choices[0].message

        assert (message.reasoning_content, message.content) == ("hm, 1 < 2\n", "Yes.")

    def test_opened_by_the_prompt(self) -> None:
        """When the prompt leaves the tag open, the text begins with thoughts."""
        markup = MarkupOptions(reasoning=True, thinking=True)
        message = answer("\nhm</think>Yes.", markup).choices[0].message

        assert (message.reasoning_content, message.content) == ("hm", "Yes.")

    def test_never_closed(self) -> None:
        """Thoughts that do not end leave no content."""
        message = answer("<think>hm</thi", READ_BOTH, finish="length").choices[0].message

        assert (message.reasoning_content, message.content) == ("hm</thi", "")

    def test_call_after_thoughts(self) -> None:
        """A call may follow thoughts; a tag among the thoughts is no call."""
        reply = answer(f"<think><tool_call></think>\n{CALL}", READ_BOTH)

        assert reply.choices[0].message.reasoning_content == "<tool_call>"
        assert len(calls(reply)) == 1


SNIPPETS = strategies.lists(
    strategies.sampled_from(
        [
            "<think>",
            "</think>",
            "<tool_call>",
            "</tool_call>",
            '{"name": "f", "arguments": {',
            '"x": "}<"',
            "}}",
            " ",
            "é",
            "<",
        ]
    ),
    max_size=12,
)


@given(snippets=SNIPPETS, size=strategies.integers(1, 7))
def test_any_chunking(snippets: list[str], size: int) -> None:
    """One text in one chunk, in many, or character by character is one answer."""
    text = "".join(snippets)
    whole = answer(text, READ_BOTH).choices[0]
    cut = answer([text[place : place + size] for place in range(0, len(text), size)], READ_BOTH).choices[0]

    assert calls(answer(text, READ_BOTH)) == [
        (call.function.name, call.function.arguments) for call in cut.message.tool_calls or [] if call.function
    ]
    assert (whole.message.content, whole.message.reasoning_content) == (
        cut.message.content,
        cut.message.reasoning_content,
    )
    assert whole.finish_reason == cut.finish_reason
