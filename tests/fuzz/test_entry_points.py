"""Bytes that nobody should send: whatever they are, a way in answers with DecodeFailure or takes them.

`make fuzz` tries more of them. The parsers are compiled and cannot be traced, so what steers the search is the shape of real
frames, not coverage.
"""

import os
from hashlib import blake2b
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, seed, settings

from tests.fuzz.entry_points import ENTRY_POINTS
from tests.fuzz.inputs import CORPUS, corpus, inputs

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "300"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))

# A long search is as long as it was asked to be.
searching = settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@pytest.mark.timeout(60 + EXAMPLES)
@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_only_decode_failure_comes_out(entry_point: str) -> None:
    """Damaged frames, wrong bodies and noise are refused in one way; what does otherwise is kept as a test."""
    found: list[bytes] = []

    @seed(SEED)
    @searching
    @given(data=inputs(entry_point))
    def feed(data: bytes) -> None:
        try:
            ENTRY_POINTS[entry_point](data)
        except BaseException:
            # The last one is the smallest: hypothesis ends with what it could not shrink further.
            found[:] = [data]
            raise

    try:
        feed()
    finally:
        for data in found:
            keep(entry_point, data)


def keep(entry_point: str, data: bytes) -> None:
    """Put a find into the corpus."""
    path = CORPUS / entry_point / f"{blake2b(data, digest_size=8).hexdigest()}.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.mark.parametrize("path", [path for name in ENTRY_POINTS for path in corpus(name)], ids=lambda path: path.stem)
def test_what_was_found_stays_fixed(path: Path) -> None:
    """Each kept input is refused, or taken, like any other."""
    ENTRY_POINTS[path.parent.name](path.read_bytes())


def test_every_entry_point_has_a_corpus() -> None:
    """There is something to start from for each way in."""
    assert {name for name in ENTRY_POINTS if not corpus(name)} == set()


def test_what_is_not_a_decode_failure_comes_out() -> None:
    """The harness passes over refusals only: anything else would be seen."""
    from tests.fuzz import entry_points

    def broken(_data: bytes) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        entry_points._all(b"", broken)
