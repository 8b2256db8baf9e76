"""What a context leg of the scripted engine hands over: the key its answer follows from, and whose it is."""

from hashlib import blake2b
from typing import Final

import msgspec
from msgspec import Struct

from worker.engines.base import HandoffFailed

_DIGEST_SIZE: Final = 16


class State(Struct, frozen=True, kw_only=True):
    """The state. `prompt` is the prompt's digest; `padding` makes it as heavy as a real one."""

    model: str
    prompt: bytes
    key: bytes
    padding: bytes = b""


def write_state(state: State) -> bytes:
    """The state as bytes that can be checked."""
    payload = msgspec.msgpack.encode(state)
    return blake2b(payload, digest_size=_DIGEST_SIZE).digest() + payload


def read_state(data: bytes) -> State:
    """The state out of these bytes. Raises HandoffFailed for what `write_state` did not write."""
    digest, payload = data[:_DIGEST_SIZE], data[_DIGEST_SIZE:]
    if blake2b(payload, digest_size=_DIGEST_SIZE).digest() != digest:
        raise HandoffFailed("The hand-off state is damaged.")
    try:
        return msgspec.msgpack.decode(payload, type=State)
    except msgspec.DecodeError as error:
        raise HandoffFailed("The hand-off state is no state of the scripted engine.") from error
