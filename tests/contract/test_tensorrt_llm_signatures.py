"""What we call in TensorRT-LLM is what its sources document, and what the stand-ins have.

The facts are one file per version in data/tensorrt_llm, each with where it was read. Held together here: the stand-ins' signatures
and the files; the files and the tables of `worker/engines/tensorrt_llm/library.py`, which refuses calls with anything else.
"""

import json
from importlib import import_module
from inspect import Parameter, signature
from typing import Any

import pytest

from tests.contract.material import DATA
from tests.fake_tensorrt_llm import VERSIONS
from tests.fake_tensorrt_llm.result import CompletionOutput, Logprob, RequestOutput
from worker.engines.tensorrt_llm.library import LLM_ARGUMENTS, NEEDED, OPTIONAL

FACTS: dict[str, Any] = {
    version: json.loads((DATA / "tensorrt_llm" / f"{version}.json").read_bytes()) for version in VERSIONS
}
CALLS = sorted(NEEDED)


def stand_in(version: str, name: str) -> Any:
    """A callable of a stand-in, by its dotted name. Any: classes and functions."""
    found = import_module(f"tests.fake_tensorrt_llm.{VERSIONS[version]}.api")
    for part in name.split("."):
        found = getattr(found, part)
    return found


def parameters_of(function: Any) -> tuple[dict[str, str], bool]:
    """Its parameters and their defaults as a file has them, and whether it takes others. Any: classes and functions."""
    found = [one for one in signature(function).parameters.values() if one.name != "self"]
    named = {one.name: "required" if one.default is Parameter.empty else repr(one.default) for one in found}
    others = [one.name for one in found if one.kind is Parameter.VAR_KEYWORD]
    return {name: default for name, default in named.items() if name not in others}, bool(others)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", CALLS)
def test_stand_in_has_the_documented_signature(name: str, version: str) -> None:
    """Each callable of a stand-in takes exactly what its file says, with the same defaults."""
    fact = FACTS[version]["callables"][name]

    assert parameters_of(stand_in(version, name)) == (fact["parameters"], fact["open"])
    assert fact["source"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", CALLS)
def test_what_every_request_needs_is_there(name: str, version: str) -> None:
    """No version lacks a parameter that we pass without asking."""
    assert NEEDED[name] - FACTS[version]["callables"][name]["parameters"].keys() == frozenset()


@pytest.mark.parametrize("name", CALLS)
def test_what_we_ask_for_exists_in_some_version(name: str) -> None:
    """A parameter that we pass where it is known is known by the newest version: otherwise it is a guess."""
    assert OPTIONAL[name] - FACTS["2026-07"]["callables"][name]["parameters"].keys() == frozenset()
    assert OPTIONAL.keys() == NEEDED.keys()


@pytest.mark.parametrize("version", VERSIONS)
def test_llm_takes_our_further_arguments(version: str) -> None:
    """What we pass to the LLM beyond its named parameters is among its documented arguments, and the stand-in's."""
    documented = set(FACTS[version]["llm_arguments"]["names"])

    assert documented == LLM_ARGUMENTS
    assert documented <= stand_in(version, "LLM").known


@pytest.mark.parametrize("version", VERSIONS)
def test_stand_in_has_what_we_read(version: str) -> None:
    """Each attribute that we read of a result or of the LLM is one that the file lists, and the stand-in has it."""
    read = FACTS[version]["read"]
    result = RequestOutput(1, [1], lambda _: None)
    model = stand_in(version, "LLM")(model="a model")

    assert [name for name in read["RequestOutput"] if not hasattr(result, name)] == []
    assert [name for name in read["CompletionOutput"] if not hasattr(CompletionOutput(0), name)] == []
    assert [name for name in read["Logprob"] if not hasattr(Logprob(0.0), name)] == []
    assert [name for name in read["LLM"] if not hasattr(model, name)] == []
