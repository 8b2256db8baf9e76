"""The hand-off as it stands on the wire."""

from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from schemas import codec
from schemas.disagg import PENDING_FINISH_REASONS, DisaggregatedParams, handoff_signature
from tests.stock.disagg import signature
from tests.stock.protocol import DisaggregatedParams as StockParams

EXPLICIT: dict[str, Any] = {
    "request_type": "context_only",
    "first_gen_tokens": [5],
    "first_gen_log_probs": None,
    "first_gen_logits": None,
    "ctx_request_id": 2**63 - 1,
    "encoded_opaque_state": "c3RhdGU=",
    "draft_tokens": None,
    "disagg_request_id": 2**62 + 1,
    "ctx_dp_rank": 0,
    "ctx_info_endpoint": "tcp://127.0.0.1:5",
    "schedule_style": 0,
    "ctx_usage": None,
    "return_prompt_token_ids_b64": False,
    "resolved_thinking": None,
}


def test_every_stock_key_is_a_field() -> None:
    """What a stock worker writes into the hand-off, we know; beyond it only the id that older ones had there."""
    ours, stock = set(DisaggregatedParams.__struct_fields__), set(StockParams.model_fields)

    assert (stock - ours, ours - stock) == (set(), {"conversation_id"})


def test_explicit_nulls_and_63_bit_ids_survive() -> None:
    """Read and written again, the object is the same, through msgpack and through JSON."""
    params = msgspec.convert(EXPLICIT, DisaggregatedParams)

    assert msgspec.msgpack.decode(codec.encode_frame(params)) == EXPLICIT
    assert msgspec.json.decode(codec.encode_json(params)) == EXPLICIT


def test_absent_keys_stay_absent() -> None:
    """What an orchestrator did not set is not sent."""
    params = DisaggregatedParams(request_type="context_only", disagg_request_id=5, schedule_style=0)

    assert msgspec.msgpack.decode(codec.encode_frame(params)) == {
        "request_type": "context_only",
        "disagg_request_id": 5,
        "schedule_style": 0,
    }


def test_unknown_keys_are_tolerated() -> None:
    """A newer worker's hand-off is read for what is known of it."""
    assert msgspec.convert(EXPLICIT | {"handoff_attempt_uuid": "x"}, DisaggregatedParams).disagg_request_id == 2**62 + 1


def test_pending_reasons_are_the_documented_two() -> None:
    """Only these two send a request on to its generation leg."""
    assert {"length", "not_finished"} == PENDING_FINISH_REASONS


@pytest.mark.parametrize("state", [None, "", "c3RhdGU=", "ünï"])
@pytest.mark.parametrize("endpoint", [None, "tcp://127.0.0.1:5", ["a", "b"]])
@pytest.mark.parametrize("key", ["k", "ключ"])
def test_signature_is_what_a_stock_worker_expects(
    key: str, endpoint: str | list[str] | None, state: str | None
) -> None:
    """Our signature of a hand-off is the one a stock worker computes."""
    assert handoff_signature(key, endpoint, state) == signature(key, state, endpoint)


def test_signature_of_a_known_message() -> None:
    """The signature as computed by `openssl dgst -sha256 -hmac k` over {"ctx_info_endpoint":null,"encoded_opaque_state":"s"}."""
    known = "sha256=e53a64e2c56e9b50fdb09379b0d699141209d46dba214f016a06a61be601c5a9"

    assert handoff_signature("k", None, "s") == known


def test_default_of_every_key_but_one_is_absence() -> None:
    """Only the type of the leg is required."""
    params = DisaggregatedParams(request_type="context_only")

    assert [name for name in params.__struct_fields__ if getattr(params, name) is not UNSET] == ["request_type"]
