"""The error object: every kind has its status and its type, and every error is what clients parse."""

import msgspec
import pytest

from gateway.links.errors import lift_error
from schemas import codec
from schemas.openai.errors import (
    HTTP_STATUS,
    OPENAI_TYPE,
    ErrorKind,
    ServingError,
    invalid,
    kind_of_status,
)
from tests.contract.material import validator
from tests.stock import Refusal


def test_every_kind_has_a_status_and_a_type() -> None:
    """The two tables have exactly the members of the closed set."""
    assert set(HTTP_STATUS) == set(OPENAI_TYPE) == set(ErrorKind)


def test_statuses_are_errors_of_one_kind_each() -> None:
    """No two kinds share a status, so a status tells its kind."""
    assert len(set(HTTP_STATUS.values())) == len(HTTP_STATUS)
    assert all(400 <= status < 600 for status in HTTP_STATUS.values())
    assert {kind_of_status(status): status for status in HTTP_STATUS.values()} == HTTP_STATUS


@pytest.mark.parametrize(
    ("status", "kind"),
    [(418, "invalid"), (422, "invalid"), (409, "invalid"), (507, "internal"), (200, "internal"), (302, "internal")],
)
def test_other_statuses_are_the_clients_fault_or_internal(status: int, kind: str) -> None:
    """A status without a kind of its own is read by its class."""
    assert kind_of_status(status) is ErrorKind(kind)


def test_kind_that_is_not_known_is_internal() -> None:
    """Kinds only grow: one that a newer peer has is read as the most general, anything but text as none."""
    assert ErrorKind("moonstruck") is ErrorKind.INTERNAL
    with pytest.raises(ValueError, match="5 is not a valid ErrorKind"):
        ErrorKind(5)  # type: ignore[arg-type]  # as a peer might send it


@pytest.mark.parametrize("kind", ErrorKind)
def test_body_is_the_documented_error_object(kind: ErrorKind) -> None:
    """Every error's body has message, type, param and code, with null for what it has not got."""
    error = ServingError(kind, "It failed.")
    body = msgspec.json.decode(codec.encode_json(error.body()))

    assert body == {"error": {"message": "It failed.", "type": OPENAI_TYPE[kind], "param": None, "code": None}}
    assert validator("ErrorResponse").is_valid(body)
    assert error.status == HTTP_STATUS[kind]


def test_invalid_names_the_field() -> None:
    """A 400 carries the field at fault and a code that programs can tell it by."""
    error = invalid("No.", "seed", "too_large")

    assert (error.status, error.param, error.code, str(error)) == (400, "seed", "too_large", "No.")


@pytest.mark.parametrize("refusal", [Refusal.validation("no"), Refusal.internal("no"), Refusal.bare_app()])
def test_stock_error_is_read_in_every_shape(refusal: Refusal) -> None:
    """Whatever shape a stock worker's error has, reading it does not fail."""
    assert lift_error(refusal.body, refusal.status).error.message
