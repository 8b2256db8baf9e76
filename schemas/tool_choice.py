"""A tool choice that names functions, held against the tools of the client's JSON before any leg.

Only such a choice makes the gateway look into `tools`, and then only for their names.
"""

import msgspec
from msgspec import Raw, Struct, UnsetType

from schemas.codec import MALFORMED, AnyChatView, failure_of
from schemas.openai.chat import AllowedToolsChoice, NamedToolChoice
from schemas.openai.rules import check_choice


class _Function(Struct, frozen=True):
    name: str = ""


class _Tool(Struct, frozen=True):
    function: _Function = _Function()


_NAMING = (NamedToolChoice, AllowedToolsChoice)
_listed = msgspec.json.Decoder(list[Raw])
_named = msgspec.json.Decoder(list[_Tool])


def settle_choice(view: AnyChatView) -> None:
    """Raise the 400 for a function that is not on offer. Allowed tools become the only ones, and their mode the choice."""
    choice = view.tool_choice
    if not isinstance(choice, _NAMING) or isinstance(view.tools, UnsetType):
        return
    names = _names(view.tools)
    check_choice(choice, names)
    if isinstance(choice, AllowedToolsChoice):
        allowed = {tool.function.name for tool in choice.allowed_tools.tools}
        tools = zip(_listed.decode(view.tools), names, strict=True)
        view.tools = Raw(b"[%b]" % b",".join(tool for tool, name in tools if name in allowed))
        view.tool_choice = choice.allowed_tools.mode


def _names(tools: Raw) -> list[str]:
    try:
        return [tool.function.name for tool in _named.decode(tools)]
    except MALFORMED as error:
        raise failure_of(error, "tools") from error
