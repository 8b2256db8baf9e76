"""API keys: the file, the header, and what is answered without one."""

from pathlib import Path

import pytest

from gateway.auth import ApiKeys, KeyFileRefused, read_keys
from schemas.openai.errors import ServingError
from tests.unit.gateway_fakes import CHAT, chat, rig

KEYS = ApiKeys([b"sk-one", "schl\u00fcssel".encode()])


@pytest.mark.parametrize(
    "value", [b"Bearer sk-one", b"bearer sk-one", b"Bearer   sk-one ", "Bearer schl\u00fcssel".encode()]
)
def test_a_key_of_the_list_is_let_in(value: bytes) -> None:
    """The scheme's case and spaces around the key do not matter; keys need not be ASCII."""
    KEYS.check(value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"sk-one",
        b"Basic sk-one",
        b"Bearer",
        b"Bearer ",
        b"Bearer sk-on",
        b"Bearer sk-one2",
        b"Bearer k\xe9y",
    ],
)
def test_anything_else_is_a_401(value: bytes | None) -> None:
    """No key, another scheme, a piece of a key, or bytes that are no text at all: never a fault of ours."""
    with pytest.raises(ServingError) as refused:
        KEYS.check(value)

    assert (refused.value.status, refused.value.code) == (401, "invalid_api_key")


def test_without_keys_everybody_is_let_in() -> None:
    """A gateway without a key file asks for no key."""
    ApiKeys().check(None)


def test_a_file_has_a_key_a_line(tmp_path: Path) -> None:
    """Empty lines and comments are no keys; spaces around a key do not belong to it."""
    path = tmp_path / "keys"
    path.write_text("# staff\nsk-a\n\n  sk-b  \r\n")
    keys = read_keys(path)

    keys.check(b"Bearer sk-a")
    keys.check(b"Bearer sk-b")
    with pytest.raises(ServingError):
        keys.check(b"Bearer # staff")


@pytest.mark.parametrize("content", [None, "", "# nobody\n"])
def test_a_file_without_keys_is_refused(tmp_path: Path, content: str | None) -> None:
    """A missing or empty file never opens the gateway to everybody."""
    path = tmp_path / "keys"
    if content is not None:
        path.write_text(content)

    with pytest.raises(KeyFileRefused, match="--api-key-file"):
        read_keys(path)


async def test_the_key_is_asked_for_before_the_body() -> None:
    """Without a key nothing of the body is read, and the answer says how to send one; streams get JSON too."""
    gateway = rig(keys=KEYS)

    response = await gateway.client.ask("POST", CHAT, None, {"content-length": "1000000"})

    assert (response.status, response.headers["www-authenticate"]) == (401, "Bearer")
    assert response.error["type"] == "authentication_error"


async def test_models_ask_for_the_key_and_health_does_not() -> None:
    """What is under /v1/ asks for the key, whether it exists or not; health checks and scrapes do not."""
    client = rig(keys=KEYS).client

    assert [(await client.get(path)).status for path in ("/v1/models", "/v1/internal")] == [401, 401]
    assert [(await client.get(path)).status for path in ("/health", "/metrics", "/version")] == [200, 200, 200]


async def test_a_request_with_a_key_is_served() -> None:
    """A key of the list opens everything."""
    client = rig(keys=KEYS).client

    assert (await client.post(CHAT, chat(), authorization="Bearer sk-one")).status == 200
    assert (await client.get("/v1/internal", authorization="Bearer sk-one")).status == 404
