"""The engine tensorrt_llm until it runs: its options, its library, its model's tokenizer."""

import asyncio
import json
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from tests.fake_tensorrt_llm import MODEL, VERSIONS, folder, installed
from tests.fake_tensorrt_llm.core import Core
from tests.fake_tensorrt_llm.stage import STAGE
from tests.fake_tensorrt_llm.tokenizer import FastTokenizer
from tests.trtllm_rig import started, trtllm
from worker.engines import create_engine
from worker.engines.base import EngineDead, EngineError, EngineRefused, Leg, Sampling, SequenceRequest
from worker.engines.tensorrt_llm.library import Shape
from worker.engines.tensorrt_llm.options import llm_arguments, read_options
from worker.engines.tensorrt_llm.vocabulary import PROBE, Vocabulary

NEWER = "2026-07"


# --- the vocabulary ---


class SentencePieceTokenizer(FastTokenizer):
    """A tokenizer whose pieces are text: words behind ▁, and bytes for what has no piece."""

    pieces = ("<s>", "▁Hello", ",", "▁")

    def __init__(self) -> None:
        super().__init__()
        self.all_special_ids, self.added_tokens_decoder = [0], {0: "<s>"}
        self.backend_tokenizer = self  # type: ignore[assignment]

    def to_str(self) -> str:
        return json.dumps(
            {"decoder": {"type": "Sequence", "decoders": [{"type": "Replace"}, {"type": "ByteFallback"}]}}
        )

    def __len__(self) -> int:
        return len(self.pieces) + 256

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [self.pieces[id_] if id_ < 4 else f"<0x{id_ - 4:02X}>" for id_ in ids]

    def __call__(self, text: str, *, add_special_tokens: bool, split_special_tokens: bool) -> dict[str, Any]:
        assert text.startswith("Hello")
        return {"input_ids": [1, *(byte + 4 for byte in text[5:].encode())]}


async def test_sentence_pieces_are_bytes_too() -> None:
    """▁ is a space, <0xF0> is a byte, and a special token has a name but no text."""
    vocabulary = Vocabulary(SentencePieceTokenizer(), 300)
    spelled = b"".join(map(vocabulary.spelled, vocabulary.tokenize(PROBE, special=False, add_special=False)))

    assert spelled.decode() == f" {PROBE}"
    assert (vocabulary.spelled(0), vocabulary.data(0), vocabulary.size) == (b"<s>", b"", 300)


async def test_tokenizer_that_cannot_be_exact_is_refused() -> None:
    """Unknown decoders, tokenizers that say nothing of bytes, and tokens that do not spell their text stop the start."""

    class Forgetful(FastTokenizer):
        def __call__(self, text: str, *, add_special_tokens: bool, split_special_tokens: bool) -> dict[str, Any]:
            return {"input_ids": [65]}

    class Strange(FastTokenizer):
        def __init__(self) -> None:
            super().__init__()
            self.backend_tokenizer = self  # type: ignore[assignment]

        def to_str(self) -> str:
            return json.dumps({"decoder": {"type": "WordPiece"}})

    for tokenizer, complaint in (
        (Forgetful(), "exactly"),
        (Strange(), "WordPiece"),
        (object(), "fast one"),
        (None, "no tokenizer"),
    ):
        with pytest.raises(EngineError, match=complaint):
            Vocabulary(tokenizer, None)


# --- the start ---


async def test_options_become_llm_arguments(tmp_path: Path) -> None:
    """Flags and YAML are one set of arguments, nested ones joined key by key."""
    extra = tmp_path / "extra.yaml"
    extra.write_text("kv_cache_config: {event_buffer_max_size: 10}\ndisable_overlap_scheduler: true\n")
    options = read_options(
        {"tp_size": "2", "ep_size": "4", "free_gpu_memory_fraction": "0.5", "extra_llm_api_options": str(extra)}
    )

    assert llm_arguments("/m", options) == {
        "model": "/m",
        "tensor_parallel_size": 2,
        "moe_expert_parallel_size": 4,
        "kv_cache_config": {"free_gpu_memory_fraction": 0.5, "event_buffer_max_size": 10},
        "disable_overlap_scheduler": True,
        "guided_decoding_backend": "xgrammar",
    }


@pytest.mark.parametrize(
    ("yaml", "complaint"),
    [
        ("kv_cache_config: {free_gpu_memory_fraction: 0.9}", "kv_cache_config.free_gpu_memory_fraction"),
        ("internal_request_auth_key: s", "--internal-key"),
        ("[1, 2]", "no map"),
        ("{", "cannot be read"),
    ],
)
async def test_yaml_that_cannot_be_meant_is_refused(yaml: str, complaint: str, tmp_path: Path) -> None:
    """What is said twice, belongs elsewhere, or is no map of arguments is refused with its name."""
    extra = tmp_path / "extra.yaml"
    extra.write_text(yaml)
    options = read_options({"free_gpu_memory_fraction": "0.5", "extra_llm_api_options": str(extra)})

    with pytest.raises(EngineError, match=complaint):
        llm_arguments("/m", options)


@pytest.mark.parametrize(
    ("model", "options", "complaint"),
    [
        (None, {}, "needs a model"),
        ("no-such-model", {}, "no such model"),
        (MODEL, {"tp_size": "0"}, "tp_size"),
        (MODEL, {"extra_llm_api_options": "/nowhere.yaml"}, "cannot be read"),
    ],
)
async def test_start_that_cannot_be_says_why(model: str | None, options: dict[str, str], complaint: str) -> None:
    """A missing model, a wrong option, an unreadable file: each is a sentence."""
    with pytest.raises(EngineError, match=complaint):
        await trtllm(NEWER, model, **options).start()


async def test_unknown_llm_argument_is_the_librarys_to_refuse(tmp_path: Path) -> None:
    """What a YAML adds is checked by the library, and its answer is passed on."""
    extra = tmp_path / "extra.yaml"
    extra.write_text("wings: 2\n")

    with pytest.raises(EngineError, match="wings"):
        await trtllm(NEWER, extra_llm_api_options=str(extra)).start()


async def test_missing_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a CUDA device the start says so."""
    monkeypatch.setattr(STAGE, "gpu", False)

    with pytest.raises(EngineError, match="NVIDIA GPU"):
        await trtllm(NEWER).start()


async def test_missing_library_names_what_to_install() -> None:
    """Where the library is not installed, the engine names the extra and the vendor's index."""
    with pytest.raises(EngineError, match=r"packrelay\[trtllm\].*NVIDIA's package index"):
        create_engine("tensorrt_llm", MODEL, {})


async def test_library_that_cannot_be_loaded_is_another_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed library whose compiled parts do not load says what they need."""
    (tmp_path / "tensorrt_llm.py").write_text("raise ImportError('libcuda.so.1: cannot open shared object file')")
    with installed(NEWER):
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(EngineError, match=r"CUDA's libraries.*libcuda\.so\.1"):
            create_engine("tensorrt_llm", MODEL, {})


async def test_other_version_is_named_by_what_it_lacks() -> None:
    """A version without a parameter that every request needs is refused at the start, with the parameter's name."""

    def changed(inputs: object, sampling: object) -> None: ...

    with pytest.raises(EngineError, match=r"TensorRT-LLM 9\.9 .*sampling_params, streaming"):
        Shape("LLM.generate_async", changed, "9.9")


async def test_without_a_transceiver_there_is_no_handoff() -> None:
    """A worker that was given no cache transceiver does not offer hand-offs, and refuses a leg that is asked for anyway."""
    with installed(NEWER):
        engine = create_engine("tensorrt_llm", MODEL, {})
    facts = await engine.start()
    leg = SequenceRequest(request_id="r", prompt=[65], sampling=Sampling(max_tokens=1), leg=Leg.CONTEXT)

    assert "handoff" not in facts.capabilities
    with pytest.raises(EngineRefused, match="cache transceiver"):
        await anext(engine.generate(leg))
    await engine.close()


async def test_forms_can_be_left_out() -> None:
    """Without guided decoding no form is declared."""
    async with started(NEWER, guided_decoding="none") as engine:
        assert engine._loaded
        assert engine._loaded.facts.capabilities.isdisjoint({"json", "regex", "grammar"})


async def test_context_is_the_models_own_by_default() -> None:
    """Without a limit of ours or the library's a sequence may be as long as the model was made for."""
    with installed(NEWER):
        engine = create_engine("tensorrt_llm", MODEL, {})
    facts = await engine.start()
    await engine.close()

    assert facts.context_length == 2048


async def test_close_while_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that is closed while its model loads shuts the model down once it is there."""
    ended: list[Core] = []

    def shutdown(llm: Core) -> None:
        ended.append(llm)

    monkeypatch.setattr(Core, "shutdown", shutdown)
    engine = trtllm(NEWER)
    starting = asyncio.create_task(engine.start(), name="starting")
    await engine.close()

    with pytest.raises(EngineError):
        await starting
    assert ended
    with pytest.raises(EngineDead):
        engine.check()


async def test_events_are_told_where_they_are_kept(tmp_path: Path) -> None:
    """With a buffer for them, KV-cache events are told once, in the library's own words."""
    extra = tmp_path / "extra.yaml"
    extra.write_text("kv_cache_config: {event_buffer_max_size: 10, enable_block_reuse: true}\n")
    request = SequenceRequest(request_id="r", prompt=list(b"hello"), sampling=Sampling(max_tokens=2))
    async with started(NEWER, extra_llm_api_options=str(extra)) as engine:
        async with aclosing(engine.generate(request)) as outputs:
            async for _ in outputs:
                pass
        events = [await engine.cache_events() for _ in range(2)]

    assert events == [[{"type": "stored", "tokens": 5}], []]


@pytest.mark.parametrize("version", VERSIONS)
def test_factory_imports_it_and_nobody_else(version: str) -> None:
    """The library is imported by the factory and by nothing before it; the command line finds it on the path."""
    program = (
        "import sys, worker.engines, worker.engines.tensorrt_llm, worker.engines.tensorrt_llm.engine;"
        "before = 'tensorrt_llm' in sys.modules or 'torch' in sys.modules;"
        f"worker.engines.create_engine('tensorrt_llm', '{MODEL}', {{}});"
        "print(before, 'tensorrt_llm' in sys.modules)"
    )
    root = Path(__file__).parents[2]
    environment = {"PYTHONPATH": f"{folder(version)}:{root}"}
    said = subprocess.check_output([sys.executable, "-c", program], text=True, env=environment, cwd=root)

    assert said.split() == ["False", "True"]
