"""Ctrl-C twice in a fleet as users start it."""

import json
import signal

import httpx2

from tests.e2e.local_fleet import STOP_SECONDS, local_fleet, two_legs


def test_a_stream_that_is_cut_by_a_second_ctrl_c_is_told_so() -> None:
    """It ends with an error record, whole, and everything stops."""
    body = {
        "model": "scripted",
        "messages": [{"role": "user", "content": "[[tokens:2000]] [[itl_ms:50]]"}],
        "max_tokens": 2000,
        "stream": True,
    }
    with local_fleet(*two_legs("scripted")) as fleet, httpx2.Client(base_url=fleet.url, timeout=60) as client:
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            chunks = response.iter_bytes()
            next(chunks)
            fleet.process.send_signal(signal.SIGINT)
            next(chunks)  # It goes on within the grace.
            fleet.process.send_signal(signal.SIGINT)
            rest = b"".join(chunks)
        status = fleet.process.wait(STOP_SECONDS)

    last = rest.rstrip().rpartition(b"data: ")[2]
    assert json.loads(last)["error"]["code"] == "shutting_down"
    assert status == 0
