"""Ctrl-C in a fleet as users start it: streams that do not end in time are told so."""

import json
import signal

import httpx2

from tests.e2e.local_fleet import STOP_SECONDS, local_fleet, two_legs

BODY = {
    "model": "scripted",
    "messages": [{"role": "user", "content": "[[tokens:2000]] [[itl_ms:50]]"}],
    "max_tokens": 2000,
    "stream": True,
}


def assert_told(rest: bytes) -> None:
    """What was left of the stream ends with an error record, whole."""
    last = rest.rstrip().rpartition(b"data: ")[2]
    assert json.loads(last)["error"]["code"] == "shutting_down"


def test_a_stream_that_is_cut_by_a_second_ctrl_c_is_told_so() -> None:
    """It ends with an error record, and everything stops."""
    with local_fleet(*two_legs("scripted")) as fleet, httpx2.Client(base_url=fleet.url, timeout=60) as client:
        with client.stream("POST", "/v1/chat/completions", json=BODY) as response:
            chunks = response.iter_bytes()
            next(chunks)
            fleet.process.send_signal(signal.SIGINT)
            next(chunks)  # It goes on within the grace.
            fleet.process.send_signal(signal.SIGINT)
            rest = b"".join(chunks)
        status = fleet.process.wait(STOP_SECONDS)

    assert_told(rest)
    assert status == 0


def test_a_stream_that_outlasts_the_grace_is_told_so() -> None:
    """The gateway has the time to say it, and to end by itself: whoever stops it knows its grace."""
    fleet_flags = (*two_legs("scripted"), "--grace", "1")
    with local_fleet(*fleet_flags) as fleet, httpx2.Client(base_url=fleet.url, timeout=60) as client:
        with client.stream("POST", "/v1/chat/completions", json=BODY) as response:
            chunks = response.iter_bytes()
            next(chunks)
            fleet.process.send_signal(signal.SIGINT)
            rest = b"".join(chunks)
        status = fleet.process.wait(STOP_SECONDS)
        said = fleet.said()

    assert_told(rest)
    assert status == 0
    assert "gateway.stopped" in said
