"""Whether a worker's whole reply is an answer."""

from msgspec import Raw, Struct

from schemas.codec import json_decoder


class _WholeReply(Struct):
    """The least a successful whole reply must be."""

    choices: list[Raw]


_decoder = json_decoder(_WholeReply)


def check_whole(body: bytes) -> None:
    """Raise what decoding does (`codec.MALFORMED`) for a reply that is no completion."""
    _decoder.decode(body)
