"""The served model's tokenizer in the form of Hugging Face's libraries, made from its GGUF: nothing comes from a hub."""

from pathlib import Path

from gguf import GGUFReader
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def write_tokenizer(gguf: str, folder: Path) -> None:
    """Write the tokenizer that a GGUF describes into a folder."""
    reader = GGUFReader(gguf)

    def texts(key: str) -> list[str]:
        field = reader.fields[key]
        return [bytes(field.parts[place]).decode() for place in field.data]

    tokens = texts("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in texts("tokenizer.ggml.merges")]
    made = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token=tokens[0], pad_token=tokens[0]).save_pretrained(folder)
