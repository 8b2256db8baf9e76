"""GET /openapi.json, and GET /docs: the same for people, a page that needs nothing from elsewhere."""

from collections.abc import Iterator
from html import escape
from importlib.metadata import version
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from schemas.openapi import as_json, document

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}"
    "h2{margin-top:2rem;font:600 1.1rem ui-monospace,monospace}table{border-collapse:collapse;width:100%}"
    "td,th{border-bottom:1px solid #ddd;padding:.25rem .5rem;text-align:left;vertical-align:top}"
    "code{font-family:ui-monospace,monospace}details{margin:.5rem 0}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}td,th{border-color:#444}a{color:#8bf}}"
)
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


class Documentation:
    """The document, made once."""

    def __init__(self) -> None:
        made = document(version("packrelay"))
        self._json = as_json(made)
        self._page = "".join(page(made)).encode("utf-8")

    async def as_json(self, _request: Request) -> Response:
        """For programs."""
        return Response(self._json, media_type="application/json")

    async def as_page(self, _request: Request) -> Response:
        """For people."""
        return Response(self._page, media_type="text/html", headers={"content-security-policy": _POLICY})


def routes() -> list[Route]:
    """The endpoints' routes."""
    documentation = Documentation()
    return [
        Route("/openapi.json", documentation.as_json, methods=["GET"], name="docs"),
        Route("/docs", documentation.as_page, methods=["GET"], name="docs"),
    ]


def page(made: dict[str, Any]) -> Iterator[str]:
    """The document as HTML: every endpoint with its answers, every schema with its fields."""
    info = made["info"]
    yield f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(info['title'])}</title><style>{_STYLE}</style>"
    yield f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info['description'])}"
    yield " <a href=/openapi.json>openapi.json</a></p>"
    for path, methods in made["paths"].items():
        for method, operation in methods.items():
            yield f"<h2>{method.upper()} {escape(path)}</h2>"
            yield from _operation(operation)
    yield "<h1>Schemas</h1>"
    for name, schema in made["components"]["schemas"].items():
        yield f"<details id='{escape(name)}'><summary><code>{escape(name)}</code></summary>"
        yield f"<p>{escape(schema.get('description', ''))}</p><table>{''.join(_fields(schema))}</table></details>"


def _operation(operation: dict[str, Any]) -> Iterator[str]:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body:
        yield f"<p>Body: {_type(body)}</p>"
    yield "<table>"
    for status, response in operation["responses"].items():
        kinds = ", ".join(_content(kind, media) for kind, media in response["content"].items())
        yield f"<tr><td>{status}<td>{escape(response['description'])}<td>{kinds}"
    yield "</table>"


def _content(kind: str, media: dict[str, Any]) -> str:
    return f"<code>{escape(kind)}</code> {_type(media['schema'])}" if media else f"<code>{escape(kind)}</code>"


def _fields(schema: dict[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        needed = "required" if name in required else ""
        yield f"<tr><td><code>{escape(name)}</code><td>{_type(field)}<td>{needed}"


def _type(schema: dict[str, Any]) -> str:
    """A schema in a few words; a named one is a link."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f"<a href='#{name}'><code>{name}</code></a>"
    if "anyOf" in schema:
        return " or ".join(_type(part) for part in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"<code>{escape(str(value))}</code>" for value in schema["enum"])
    kind = escape(str(schema.get("type", "anything")))
    limits = [f"{word} {schema[key]}" for key, word in _LIMITS.items() if key in schema]
    inner = f" of {_type(schema['items'])}" if schema.get("items") else ""
    return kind + inner + (f" ({escape(', '.join(limits))})" if limits else "")


_LIMITS = {
    "minimum": "from",
    "exclusiveMinimum": "above",
    "maximum": "to",
    "minLength": "length from",
    "maxLength": "length to",
    "minItems": "items from",
    "maxItems": "items to",
}
