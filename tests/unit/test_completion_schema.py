"""The completions types against the public API document, and the three states of their fields."""

from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Struct

from schemas import codec
from schemas.openai.completions import Completion, CompletionRequest, CompletionView, TolerantCompletionView
from tests.contract.material import openapi, properties

BODY: dict[str, Any] = {"model": "m", "prompt": "hello"}
OPTIONAL = sorted(set(CompletionRequest.__struct_fields__) - {"model", "prompt"})
LEFT_OUT = {"CreateCompletionResponse.system_fingerprint": "never written: clients take its absence"}
EXTENSIONS = {
    "use_beam_search top_k top_p_min min_p repetition_penalty length_penalty early_stopping stop_token_ids",
    "include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens",
    "truncate_prompt_tokens thinking_token_budget prompt_ignore_length lora_request response_format",
    "disaggregated_params conversation_params priority add_special_tokens return_context_logits detokenize",
}
READINGS: list[type[Struct]] = [CompletionRequest, CompletionView, TolerantCompletionView]


def read(**fields: Any) -> CompletionRequest:
    """A request with these fields, as a worker reads its JSON."""
    return codec.read_completion_json(msgspec.json.encode(BODY | fields))


@pytest.mark.parametrize("reading", READINGS)
def test_every_property_is_a_field(reading: type[Struct]) -> None:
    """What the API document has in a request, every reading of it has, and every extension of a stock worker."""
    extensions = {name for line in EXTENSIONS for name in line.split()}

    assert set(properties("CreateCompletionRequest")) | extensions <= set(reading.__struct_fields__)


def test_every_property_of_the_reply_is_a_field_or_left_out_for_a_reason() -> None:
    """What the API document has in a reply and its choices, we have, or say why not."""
    choice = openapi()["components"]["schemas"]["CreateCompletionResponse"]["properties"]["choices"]["items"]
    missing = set(properties("CreateCompletionResponse")) - set(Completion.__struct_fields__)
    choices = msgspec.structs.fields(Completion)[4].type

    assert {f"CreateCompletionResponse.{name}" for name in missing} == set(LEFT_OUT)
    assert set(choice["properties"]) <= set(choices.__args__[0].__struct_fields__)


@pytest.mark.parametrize("name", OPTIONAL)
def test_absent_and_null_stay_apart(name: str) -> None:
    """An absent field is UNSET and stays absent; a null one is None and stays null; through JSON and through msgpack."""
    for body, value in ((BODY, UNSET), (BODY | {name: None}, None)):
        from_json = codec.read_completion_json(msgspec.json.encode(body))
        from_frame = codec.read_completion_frame(msgspec.msgpack.encode(body))

        assert getattr(from_json, name) is getattr(from_frame, name) is value
        assert msgspec.msgpack.decode(codec.encode_frame(from_json)) == body
        assert msgspec.json.decode(codec.encode_json(from_frame)) == body


@pytest.mark.parametrize("name", sorted(properties("CreateCompletionRequest")))
def test_documented_bounds_are_accepted(name: str) -> None:
    """The ends of a documented range, and the documented default, are values that can be sent."""
    schema = properties("CreateCompletionRequest")[name]
    for key in ("minimum", "maximum", "default", "example"):
        if key in schema:
            read(**{name: schema[key]})


@pytest.mark.parametrize("prompt", ["", "text", [1, 2], [[1], [2, 3]], ["a", "b"], None, "\u0000", "🙂", [2**31 - 1]])
def test_every_shape_of_prompt_crosses(prompt: object) -> None:
    """A prompt of any documented shape is the same to a worker, whether it came as JSON or in a frame."""
    view, _ = codec.read_completion_view(msgspec.json.encode(BODY | {"prompt": prompt}))
    codec.plain_form(view)
    crossed = codec.read_completion_frame(codec.encode_frame(view))

    assert codec.prompt_of(crossed) == codec.prompt_of(read(prompt=prompt))


@pytest.mark.parametrize("body", [{"model": "m"}, {"prompt": "a"}, {}])
def test_missing_field_is_named(body: dict[str, str]) -> None:
    """Model and prompt are required, by every reading."""
    data = msgspec.json.encode(body)
    for reading in (codec.read_completion_json, codec.read_completion_view):
        with pytest.raises(codec.DecodeFailure) as caught:
            reading(data)

        assert caught.value.param in {"model", "prompt"} - set(body)


@pytest.mark.parametrize(
    "fields",
    [
        {"best_of": 21},
        {"best_of": -1},
        {"logprobs": 21},
        {"logprobs": True},
        {"max_tokens": -1},
        {"suffix": 1},
        {"echo": 1},
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name(fields: dict[str, Any]) -> None:
    """Every bounded field is held to its bounds, and the refusal names it."""
    with pytest.raises(codec.DecodeFailure) as caught:
        read(**fields)
    assert caught.value.param == next(iter(fields))
