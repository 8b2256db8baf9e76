"""Whether a worker's whole reply is an answer."""

from msgspec import Raw, Struct

from schemas.codec import json_decoder


class WholeReply(Struct):
    """The least a successful whole reply must be."""

    choices: list[Raw]


whole_reply = json_decoder(WholeReply)
