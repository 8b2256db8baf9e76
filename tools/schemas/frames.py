"""Golden frames of a release against today's types: each is still read, and still written as the same bytes."""

from collections.abc import Iterator
from typing import Any

import msgspec

from schemas.codec import encode_frame
from schemas.nulls import LenientDecoder
from tools.schemas.artefacts import Files
from tools.schemas.catalogue import MESSAGES
from tools.schemas.finding import Finding, Rule


def frame_findings(files: Files) -> Iterator[Finding]:
    """Every frame among these files that is not what it was. A message that is gone is the schemas' finding, not one of these."""
    for path, frame in files.items():
        folder, _, rest = path.partition("/")
        name, _, sample = rest.partition("/")
        if folder == "golden" and sample.endswith(".msgpack") and name in MESSAGES:
            yield from _findings(name, sample.removesuffix(".msgpack"), frame, files[path.replace(".msgpack", ".json")])


def _findings(name: str, sample: str, frame: bytes, text: bytes) -> Iterator[Finding]:
    try:
        value = LenientDecoder(msgspec.msgpack.Decoder(MESSAGES[name])).decode(frame)
        same: Any = LenientDecoder(msgspec.json.Decoder(MESSAGES[name])).decode(text)
    except msgspec.DecodeError as error:
        yield Finding(name, sample, Rule.UNREADABLE_FRAME, f"the released frame is not read any more: {error}")
        return
    if value != same:
        yield Finding(name, sample, Rule.CHANGED_FRAME, "the released frame and its JSON are read differently")
    elif encode_frame(value) != frame:
        yield Finding(name, sample, Rule.CHANGED_FRAME, "the released frame is written as other bytes")
