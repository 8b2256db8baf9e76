"""Chat templates and the messages they read."""

from typing import Any

import pytest
from msgspec import convert

from schemas.openai.chat import ChatMessage, Tool
from schemas.openai.errors import ServingError
from worker.conversation import conversation
from worker.prompt import chat_template

ROLES = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
WEATHER = {"type": "function", "function": {"name": "weather"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}


def messages(*given: dict[str, Any]) -> list[ChatMessage]:
    """Messages as a client would send them. Any: their values are JSON."""
    return convert(list(given), list[ChatMessage])


def text_mode(*given: dict[str, Any], tools: list[Any] | None = None) -> list[dict[str, Any]]:
    """The messages for a template without tools."""
    return conversation(messages(*given), convert(tools or [], list[Tool]), native=False)


def refusal(*given: dict[str, Any]) -> ServingError:
    """Why these messages are refused."""
    with pytest.raises(ServingError) as refused:
        text_mode(*given)
    return refused.value


class TestTemplate:
    def test_render(self) -> None:
        """A template sees the messages and the variables beside them."""
        rendered = chat_template("{{ bos_token }}" + ROLES).render(
            [{"role": "user", "content": "hi"}], {"bos_token": "<s>"}
        )

        assert rendered == "<s>user: hi\n"

    def test_layout(self) -> None:
        """Blocks leave no line of their own, as in the library the templates are written for."""
        assert chat_template("a\n  {% if true %}\nb\n  {% endif %}\n").render([], {}) == "a\nb\n"

    def test_tojson(self) -> None:
        """JSON in a prompt has no HTML escapes and keeps every alphabet."""
        rendered = chat_template("{{ x | tojson }} {{ x | tojson(indent=1) }}").render([], {"x": {"a": "<é>"}})

        assert rendered == '{"a": "<é>"} {\n "a": "<é>"\n}'

    def test_generation_block(self) -> None:
        """Marks for training change nothing."""
        assert chat_template("{% generation %}a{% endgeneration %}b").render([], {}) == "ab"

    def test_loop_controls(self) -> None:
        """Templates may leave a loop early."""
        assert chat_template("{% for x in [1, 2] %}{{ x }}{% break %}{% endfor %}").render([], {}) == "1"

    def test_today(self) -> None:
        """Templates may ask for the date."""
        assert chat_template("{{ strftime_now('%Y') }}").render([], {}).isdigit()

    def test_variables(self) -> None:
        """A template tells whether it has a place for tools; a word in its text is none."""
        assert "tools" in chat_template("{% if tools %}x{% endif %}").variables
        assert "tools" not in chat_template("You have tools. {{ messages }}").variables

    def test_compiled_once(self) -> None:
        """The same source is compiled once."""
        assert chat_template(ROLES) is chat_template(ROLES)

    def test_refusal(self) -> None:
        """What a template says when it refuses reaches the client."""
        with pytest.raises(ServingError, match="roles must alternate") as refused:
            chat_template("{{ raise_exception('roles must alternate') }}").render([], {})
        assert refused.value.status == 400

    @pytest.mark.parametrize(
        "source",
        [
            "{{ messages[5].content }}",
            "{{ messages[0].content + 1 }}",
            "{{ 1 // 0 }}",
            "{{ messages[0].content | nosuchfilter }}",
            "{% if %}",
            "{{ messages.append(1) }}",
            "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        ],
    )
    def test_failure(self, source: str) -> None:
        """A template that fails, or reaches outside its sandbox, is a 400 without anything internal."""
        with pytest.raises(ServingError) as refused:
            chat_template(source).render([{"role": "user", "content": "hi"}], {})
        assert (refused.value.status, refused.value.param) == (400, "messages")

    def test_no_template(self) -> None:
        """A model without a template names the endpoint that needs none."""
        with pytest.raises(ServingError, match="/v1/completions"):
            chat_template("")


class TestMessages:
    def test_parts(self) -> None:
        """Text parts become one text."""
        content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

        assert text_mode({"role": "user", "content": content})[0]["content"] == "a\nb"

    @pytest.mark.parametrize(("role", "known"), [("developer", "system"), ("critic", "critic"), ("function", "user")])
    def test_roles(self, role: str, known: str) -> None:
        """Developer is system, a function's answer goes to the user's side, and other roles are the template's business."""
        assert text_mode({"role": role, "content": "x"})[0]["role"] == known

    def test_reasoning(self) -> None:
        """Earlier thoughts reach the template under either name."""
        read = text_mode({"role": "assistant", "content": "a", "reasoning": "hm"})

        assert read[0]["reasoning_content"] == "hm"

    @pytest.mark.parametrize(
        ("message", "param"),
        [
            ({"role": "user"}, "messages[0].content"),
            ({"role": "user", "content": None}, "messages[0].content"),
            ({"role": "assistant", "content": None, "tool_calls": []}, "messages[0].content"),
            ({"role": "user", "content": []}, "messages[0].content"),
            ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0].type"),
            ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
            ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "messages[0].tool_calls[0].function"),
        ],
    )
    def test_refused(self, message: dict[str, Any], param: str) -> None:
        """What cannot be read is refused with its place."""
        refused = refusal(message)

        assert (refused.status, refused.param) == (400, param)

    def test_refused_answer(self) -> None:
        """An earlier refusal is what the assistant said."""
        assert text_mode({"role": "assistant", "content": None, "refusal": "No."})[0]["content"] == "No."


class TestHistoryAsText:
    def test_call(self) -> None:
        """Calls are part of the assistant's words, null content is not."""
        read = text_mode({"role": "assistant", "content": None, "tool_calls": [CALL]})

        assert read[0]["content"].startswith('<tool_call>\n{"name": "weather"')
        assert "tool_calls" not in read[0]

    def test_legacy_call(self) -> None:
        """The older form of a call is read the same way."""
        read = text_mode({"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}})

        assert '{"name": "f", "arguments": {}}' in read[0]["content"]

    def test_answers_together(self) -> None:
        """The answers to parallel calls are one message of the user."""
        answers = [{"role": "tool", "tool_call_id": id_, "content": id_} for id_ in ("c1", "c2")]
        read = text_mode(*answers, {"role": "user", "content": "so?"})

        assert [message["role"] for message in read] == ["user", "user"]
        assert read[0]["content"] == "<tool_response>\nc1\n</tool_response>\n<tool_response>\nc2\n</tool_response>"

    def test_offer(self) -> None:
        """Tools are shown in a system prompt, after the client's own if there is one."""
        alone = text_mode({"role": "user", "content": "hi"}, tools=[WEATHER])
        beside = text_mode({"role": "developer", "content": "Be brief."}, tools=[WEATHER])

        assert (len(alone), alone[0]["role"]) == (2, "system")
        assert beside[0]["content"].startswith("Be brief.\n\n")


class TestHistoryForTemplates:
    @pytest.mark.parametrize(
        ("written", "read"), [('{"a": 1}', {"a": 1}), ("", {}), ("[1,2]", "[1,2]"), ("5", "5"), ("{not", "{not")]
    )
    def test_arguments(self, written: str, read: Any) -> None:
        """A template with a place for tools gets arguments as an object, or as the text they are if they are none."""
        call = {"function": {"name": "f", "arguments": written}}
        made = conversation(messages({"role": "assistant", "tool_calls": [call]}), [], native=True)

        assert made[0]["tool_calls"][0]["function"]["arguments"] == read
        assert made[0]["content"] == ""
