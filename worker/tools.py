"""The tools a request offers: which one the model must call, how they are shown to a model whose template has no place for them,
and the form a forced call has.
"""

import json
from typing import Any, Final

from msgspec import Struct, to_builtins

from schemas.openai.chat import (
    AllowedToolsChoice,
    ChatCompletionRequest,
    FunctionCall,
    FunctionDefinition,
    NamedToolChoice,
    Tool,
    ToolChoice,
)
from schemas.openai.errors import invalid
from schemas.openai.options import ResponseFormat
from schemas.openai.rules import check_choice
from worker.engines.base import Constraint
from worker.fields import given
from worker.schema_check import check_nesting, check_schema
from worker.tool_calls import CALL_CLOSE, CALL_OPEN

MAX_TOOLS: Final = 1024
"""The most tools one request may offer."""


class ToolUse(Struct, frozen=True, kw_only=True):
    """What a request wants of tools: those on `offer`, those of which one must be called (`forced`), whether one call is enough.

    An empty offer means that the text is not searched for calls.
    """

    offer: list[Tool]
    forced: list[FunctionDefinition]
    single_call: bool = False

    @property
    def constraint(self) -> Constraint | None:
        """The form that makes the output one call of a forced function, None if none is forced."""
        return Constraint(kind="json_schema", text=forced_schema(self.forced)) if self.forced else None

    @property
    def names(self) -> frozenset[str]:
        """The functions on offer."""
        return frozenset(tool.function.name for tool in self.offer)

    def beside(self, answer: Constraint) -> Constraint:
        """The form of an answer in JSON, or of a call instead of it. The answer comes first."""
        schema = json.loads(answer.text) if answer.kind == "json_schema" else {"type": "object"}
        functions = [tool.function for tool in self.offer]
        return Constraint(kind="json_schema", text=forced_schema(functions, schema))


def tool_use(request: ChatCompletionRequest) -> ToolUse:
    """The request's tools and choice, resolved. A choice of a function that is not on offer is a 400."""
    tools = given(request.tools, [])
    choice: ToolChoice = given(request.tool_choice, "auto" if tools else "none")
    if len(tools) > MAX_TOOLS:
        raise invalid(f"A request may offer at most {MAX_TOOLS} tools, this one offers {len(tools)}.", "tools")
    check_choice(choice, [tool.function.name for tool in tools])
    if choice == "none":
        return ToolUse(offer=[], forced=[])
    offer = _offer(tools, choice)
    forced = _forced(offer, choice)
    formatted = isinstance(request.response_format, ResponseFormat) and request.response_format.type != "text"
    for number, tool in enumerate(tools):
        enforced = formatted or tool.function in forced
        _check_parameters(tool.function, f"tools[{number}].function.parameters", enforced=enforced)
    return ToolUse(offer=offer, forced=forced, single_call=request.parallel_tool_calls is False)


def _offer(tools: list[Tool], choice: ToolChoice) -> list[Tool]:
    if not isinstance(choice, AllowedToolsChoice):
        return tools
    allowed = {tool.function.name for tool in choice.allowed_tools.tools}
    return [tool for tool in tools if tool.function.name in allowed]


def _forced(offer: list[Tool], choice: ToolChoice) -> list[FunctionDefinition]:
    """The functions of which one must be called."""
    if isinstance(choice, NamedToolChoice):
        return [tool.function for tool in offer if tool.function.name == choice.function.name][:1]
    mode = choice.allowed_tools.mode if isinstance(choice, AllowedToolsChoice) else choice
    return [tool.function for tool in offer] if mode == "required" else []


def _check_parameters(function: FunctionDefinition, place: str, *, enforced: bool) -> None:
    """Where a call is forced, or made instead of an answer in a form, its parameters are enforced, and have to be a schema."""
    parameters = given(function.parameters, {})
    check_nesting(parameters, place)
    if enforced:
        check_schema(parameters, place)


# --- tools as text ---

_OFFER = """You may call functions to help with the user's request.

The functions are described in <tools></tools>, one JSON object a line:
<tools>
{tools}
</tools>

To call a function, answer with a JSON object that has its name and arguments, inside {open}{close}:
{open}
{{"name": <function name>, "arguments": <arguments as a JSON object>}}
{close}"""


def offer_text(tools: list[Tool]) -> str:
    """The system prompt that shows the tools, for templates that have no place for them."""
    lines = "\n".join(json.dumps(to_builtins(tool), ensure_ascii=False) for tool in tools)
    return _OFFER.format(tools=lines, open=CALL_OPEN, close=CALL_CLOSE)


def call_text(call: FunctionCall) -> str:
    """An earlier call as the model would have written it. Arguments that are no JSON stand there as a string."""
    arguments = call.arguments.strip() or "{}"
    if not is_json(arguments):
        arguments = json.dumps(call.arguments, ensure_ascii=False)
    name = json.dumps(call.name, ensure_ascii=False)
    return f'{CALL_OPEN}\n{{"name": {name}, "arguments": {arguments}}}\n{CALL_CLOSE}'


def response_text(content: str) -> str:
    """A tool's answer as text."""
    return f"<tool_response>\n{content}\n</tool_response>"


def is_json(text: str) -> bool:
    """Whether a text is one JSON value."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


# --- the form of a forced call ---


def forced_schema(functions: list[FunctionDefinition], answer: dict[str, Any] | None = None) -> str:
    """The JSON Schema of one call of one of the functions, the name first; or of the answer, if there may be one instead."""
    definitions: dict[str, Any] = {}
    calls = [] if answer is None else [_lifted(answer, "a_", definitions)]
    calls += [_call_schema(function, f"f{number}_", definitions) for number, function in enumerate(functions)]
    schema = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return json.dumps({**schema, "$defs": definitions} if definitions else schema, ensure_ascii=False)


def _call_schema(function: FunctionDefinition, prefix: str, definitions: dict[str, Any]) -> dict[str, Any]:
    parameters = given(function.parameters, {"type": "object", "properties": {}})
    # Arguments are always an object, whatever the schema leaves open.
    arguments = _lifted({"type": "object", **parameters}, prefix, definitions)
    return {
        "type": "object",
        "properties": {"name": {"const": function.name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _lifted(parameters: dict[str, Any], prefix: str, definitions: dict[str, Any]) -> Any:
    """The schema fit to stand inside another one: its definitions move to the outer `$defs`, and references follow them."""
    inner = {key: value for key, value in parameters.items() if key not in ("$defs", "definitions", "$schema", "$id")}
    root = _moved(inner, prefix)
    for key in ("$defs", "definitions"):
        for name, schema in (parameters.get(key) or {}).items():
            definitions[prefix + name] = _moved(schema, prefix)
    if _refers_to_root(parameters):
        definitions[prefix] = root
    return root


def _moved(schema: Any, prefix: str) -> Any:
    if isinstance(schema, list):
        return [_moved(item, prefix) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _moved_reference(value, prefix) if key == "$ref" and isinstance(value, str) else _moved(value, prefix)
        for key, value in schema.items()
    }


def _moved_reference(reference: str, prefix: str) -> str:
    for place in ("#/$defs/", "#/definitions/"):
        if reference.startswith(place):
            return f"#/$defs/{prefix}{reference.removeprefix(place)}"
    return f"#/$defs/{prefix}" if reference == "#" else reference


def _refers_to_root(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(_refers_to_root(item) for item in schema)
    if not isinstance(schema, dict):
        return False
    return schema.get("$ref") == "#" or any(_refers_to_root(value) for value in schema.values())
