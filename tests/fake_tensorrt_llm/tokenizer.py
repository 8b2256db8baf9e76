"""A byte-level tokenizer with the shape of Hugging Face's fast ones, and the wrapper the library puts around it."""

import json
import re
from typing import Any, Final

MARKERS: Final = ("<|begin|>", "<|im_start|>", "<|im_end|>")
BEGIN, _, END = range(256, 256 + len(MARKERS))
SIZE: Final = 256 + len(MARKERS)
TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_MARKER: Final = re.compile("|".join(re.escape(marker) for marker in MARKERS))


def _byte_piece(byte: int) -> str:
    """The character that stands for a byte in GPT-2's alphabet."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    if byte in printable:
        return chr(byte)
    return chr(0x100 + [other for other in range(256) if other not in printable].index(byte))


class Backend:
    """tokenizer.backend_tokenizer."""

    def to_str(self) -> str:
        """Its description."""
        return json.dumps({"decoder": {"type": "Sequence", "decoders": [{"type": "ByteLevel"}]}})


class FastTokenizer:
    """Bytes are tokens 0 to 255, then come the markers."""

    def __init__(self) -> None:
        self.backend_tokenizer = Backend()
        self.all_special_ids = list(range(256, SIZE))
        self.added_tokens_decoder = dict(enumerate(MARKERS, start=256))
        self.bos_token, self.eos_token, self.eos_token_id = MARKERS[0], MARKERS[2], END
        self.chat_template = TEMPLATE

    def __len__(self) -> int:
        return SIZE

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        """The pieces of ids."""
        return [_byte_piece(id_) if id_ < 256 else MARKERS[id_ - 256] for id_ in ids]

    def __call__(self, text: str, *, add_special_tokens: bool, split_special_tokens: bool) -> dict[str, Any]:
        ids = [BEGIN] if add_special_tokens else []
        place = 0
        for marker in [] if split_special_tokens else _MARKER.finditer(text):
            ids += text[place : marker.start()].encode()
            ids.append(256 + MARKERS.index(marker.group()))
            place = marker.end()
        return {"input_ids": [*ids, *text[place:].encode()]}


class TransformersTokenizer:
    """The library's wrapper."""

    def __init__(self, tokenizer: FastTokenizer) -> None:
        self.tokenizer = tokenizer
