"""The public API, from the request's bytes to the response's, in front of a backend that does as it is told."""

import asyncio
import gzip
import json
from typing import Any

import pytest

from gateway.api.errors import UNSERVED
from gateway.call import Answer
from schemas.openai.errors import ErrorKind, ServingError
from schemas.openai.stream import error_record
from tests.unit.gateway_fakes import CHAT, COMPLETIONS, DONE, EVENT, FakeStream, chat, rig, turns

BUSY = ServingError(ErrorKind.RATE_LIMITED, "The worker is busy.", retry_after=2.5)


class TestAnswers:
    async def test_a_whole_answer_is_relayed_as_it_is(self) -> None:
        """The backend's body goes to the client unchanged, as JSON."""
        gateway = rig(Answer(body=b'{"id":"chatcmpl-7"}'))

        response = await gateway.client.post(CHAT, chat())

        assert (response.status, response.body) == (200, b'{"id":"chatcmpl-7"}')
        assert response.headers["content-type"] == "application/json"
        assert response.headers["content-length"] == "19"

    async def test_a_stream_is_relayed_up_to_its_terminal(self) -> None:
        """A stream's events go to the client one read at a time, and the stream is closed."""
        stream = FakeStream(EVENT, EVENT + DONE)
        gateway = rig(stream)

        response = await gateway.client.post(CHAT, chat(stream=True))

        assert response.body == EVENT + EVENT + DONE
        assert response.headers["content-type"].startswith("text/event-stream")
        assert [message.get("more_body", False) for message in gateway.client.messages[1:]] == [True, True, False]
        assert stream.closed == 1

    async def test_the_backend_gets_the_request_as_it_was_read(self) -> None:
        """A call carries the operation, our own id, whether it streams, and a deadline."""
        gateway = rig(request_timeout=60.0)

        await gateway.client.post(COMPLETIONS, {"model": "tiny", "prompt": "hi"}, x_request_id="theirs")
        (call,) = gateway.backend.calls

        assert (call.operation, call.stream, call.view.model) == (COMPLETIONS, False, "tiny")
        assert call.request_id != "theirs"
        assert len(call.request_id) == 32

    async def test_a_failure_of_the_backend_is_the_openai_object(self) -> None:
        """What the backend raises is answered with its status, its object, and when to come back."""
        gateway = rig(BUSY)

        response = await gateway.client.post(CHAT, chat())

        assert response.status == 429
        assert response.error == {
            "message": "The worker is busy.",
            "type": "rate_limit_error",
            "param": None,
            "code": None,
        }
        assert (response.headers["retry-after"], response.headers["retry-after-ms"]) == ("3", "2500")

    async def test_a_bug_of_ours_tells_nothing(self) -> None:
        """An exception nobody expected is a 500 that names nothing internal and asks for no retry."""
        gateway = rig(KeyError("/srv/secret/path"))

        response = await gateway.client.post(CHAT, chat())

        assert (response.status, response.error["type"]) == (500, "server_error")
        assert b"secret" not in response.body
        assert response.headers["x-should-retry"] == "false"

    async def test_a_bug_in_mid_stream_is_an_error_record(self) -> None:
        """A stream that breaks in our own hands ends with an error record and no [DONE]."""

        class Broken(FakeStream):
            async def read(self) -> bytes:
                """Breaks after its chunks."""
                if not self.chunks:
                    raise KeyError("gone")
                return await super().read()

        stream = Broken(EVENT)
        gateway = rig(stream)

        response = await gateway.client.post(CHAT, chat(stream=True))
        events = response.body.split(b"\n\n")

        assert (response.status, events[0] + b"\n\n") == (200, EVENT)
        assert json.loads(events[1].removeprefix(b"data: "))["error"]["code"] == "internal_error"
        assert (len(events), stream.closed) == (3, 1)

    @pytest.mark.parametrize("reply", [Answer(body=b"{}"), FakeStream(EVENT, DONE), BUSY, KeyError("bug")])
    async def test_nothing_is_held_afterwards(self, reply: Any) -> None:
        """However a request ends, its permit, its bytes and its place in the in-flight set are given back."""
        gateway = rig(reply)

        await gateway.client.post(CHAT, chat(stream=True))

        assert gateway.idle


class TestDisconnects:
    async def test_a_client_that_leaves_before_the_answer_cancels_it(self) -> None:
        """Leaving during prefill cancels the backend's work; nobody is answered."""
        gateway = rig()
        gateway.backend.hold = True

        asking = asyncio.create_task(gateway.client.post(CHAT, chat()))
        await gateway.backend.asked.wait()
        gateway.client.leave()
        response = await asking

        assert gateway.backend.cancelled.is_set()
        assert (response.status, gateway.idle) == (0, True)
        assert gateway.parts.metrics.requests["chat", "4xx", "client_gone"] == 1

    async def test_a_client_that_leaves_in_mid_stream_closes_it(self) -> None:
        """Leaving during a stream closes it, although the stream is silent."""
        stream = FakeStream(EVENT, silent=True)
        gateway = rig(stream)
        gateway.client.on_message = lambda message: gateway.client.leave() if message.get("body") else None

        response = await gateway.client.post(CHAT, chat(stream=True))

        assert (response.body, stream.closed, gateway.idle) == (EVENT, 1, True)

    async def test_a_client_that_leaves_while_it_waits_gives_up_its_place(self) -> None:
        """A request in the waiting room leaves it with its client."""
        gateway = rig(max_in_flight=1)
        gateway.backend.hold = True
        first = asyncio.create_task(gateway.client.post(CHAT, chat()))
        await gateway.backend.asked.wait()

        waiting = gateway.another_client()
        second = asyncio.create_task(waiting.post(CHAT, chat()))
        await turns()
        assert gateway.parts.admission.waiting == 1
        waiting.leave()
        await second
        gateway.backend.release.set()

        assert (await first).status == 200
        assert (len(gateway.backend.calls), gateway.idle) == (1, True)

    async def test_a_client_that_leaves_in_its_body_is_forgotten(self) -> None:
        """A connection that ends before the body does is not answered."""
        gateway = rig()
        gateway.client.leave()

        response = await gateway.client.ask("POST", CHAT, None, {"content-length": "10"})

        assert (response.status, gateway.backend.calls, gateway.idle) == (0, [], True)


class TestBodies:
    async def test_a_body_announced_as_too_large_is_not_read(self) -> None:
        """Content-Length alone is reason enough for a 413."""
        gateway = rig(max_body_bytes=100)

        response = await gateway.client.ask("POST", CHAT, None, {"content-length": "101"})

        assert (response.status, response.error["code"]) == (413, "body_too_large")

    async def test_a_body_that_becomes_too_large_is_not_read_on(self) -> None:
        """Without Content-Length the bytes are counted as they come."""
        gateway = rig(max_body_bytes=100_000)

        response = await gateway.client.post(CHAT, b" " * 200_000)

        assert (response.status, gateway.idle) == (413, True)

    async def test_a_body_in_pieces_is_read_whole(self) -> None:
        """A body that arrives in several pieces is the same body."""
        gateway = rig()

        response = await gateway.client.post(CHAT, chat(user="x" * 200_000))

        assert response.status == 200
        assert gateway.backend.calls[0].view.user == "x" * 200_000

    async def test_bodies_of_all_requests_together_are_bounded(self) -> None:
        """What does not fit beside the other bodies is refused for now."""
        gateway = rig(max_in_flight_bytes=100)

        response = await gateway.client.post(CHAT, chat(user="x" * 100))

        assert (response.status, response.error["code"]) == (503, "body_bytes")
        assert response.headers["retry-after"] == "1"

    @pytest.mark.parametrize("type_", ["", "APPLICATION/JSON", "application/json; charset=utf-8", "application/x+json"])
    async def test_json_is_json_however_it_is_called(self, type_: str) -> None:
        """Content types of JSON are accepted in any case and with parameters; so is none."""
        assert (await rig().client.post(CHAT, chat(), content_type=type_)).status == 200

    @pytest.mark.parametrize("type_", ["multipart/form-data; boundary=x", "application/msgpack", "text/plain"])
    async def test_other_types_are_refused(self, type_: str) -> None:
        """A body that says it is something else is a 415."""
        response = await rig().client.post(CHAT, chat(), content_type=type_)

        assert (response.status, response.error["type"]) == (415, "invalid_request_error")

    async def test_a_tagged_body_is_refused(self) -> None:
        """The tag of the inner hop opens nothing from outside."""
        response = await rig().client.post(CHAT, chat(), x_trtllm_msgpack="1")

        assert (response.status, response.error["code"]) == (400, "msgpack_not_accepted")

    async def test_a_compressed_body_is_decoded(self) -> None:
        """A body in a known coding is taken."""
        gateway = rig()

        response = await gateway.client.post(CHAT, gzip.compress(json.dumps(chat()).encode()), content_encoding="gzip")

        assert (response.status, gateway.idle) == (200, True)

    async def test_a_body_of_no_known_length_is_refused(self) -> None:
        """A request that neither names the length of a body nor sends chunks is a 411."""
        response = await rig().client.ask("POST", CHAT, headers={"content-type": "application/json"})

        assert (response.status, response.error["type"]) == (411, "invalid_request_error")

    async def test_a_bomb_is_bounded(self) -> None:
        """A small body that would decompress to more than the limit is a 413."""
        bomb = gzip.compress(b" " * 1_000_000)

        response = await rig(max_body_bytes=10_000).client.post(CHAT, bomb, content_encoding="gzip")

        assert response.status == 413

    @pytest.mark.parametrize("body", [b"no gzip", gzip.compress(b"{}")[:-4], gzip.compress(b"{}") + b"more", b""])
    async def test_a_broken_encoding_is_the_clients_mistake(self, body: bytes) -> None:
        """What does not decompress to its end is a 400."""
        assert (await rig().client.post(CHAT, body, content_encoding="gzip")).status == 400

    async def test_unknown_encodings_are_refused_by_name(self) -> None:
        """An encoding that is not supported is a 415 that lists those that are."""
        response = await rig().client.post(CHAT, chat(), content_encoding="br")

        assert (response.status, response.headers["accept-encoding"]) == (415, "gzip, deflate, zstd, identity")

    @pytest.mark.parametrize(
        "body", [b"", b"[1,2]", b'{"model":', b"\x00" * 64, b"<html>", b'{"a":' * 100_000, b"\xff"]
    )
    async def test_a_malformed_body_is_a_400(self, body: bytes) -> None:
        """Every way to be malformed gets the error object, and the next request is served."""
        gateway = rig()

        response = await gateway.client.post(CHAT, body)

        assert (response.status, set(response.error)) == (400, {"message", "type", "param", "code"})
        assert (await gateway.client.post(CHAT, chat())).status == 200

    async def test_a_body_that_does_not_come_is_waited_for_only_so_long(self) -> None:
        """A client that announces a body and sends none gets a 408, and its connection is closed."""
        response = await rig(body_timeout=0.01).client.ask("POST", CHAT, None, {"content-length": "10"})

        assert (response.status, response.headers["connection"]) == (408, "close")


class TestFields:
    @pytest.mark.parametrize("field", ["disaggregated_params", "prompt_token_ids", "prompt_token_ids_b64"])
    @pytest.mark.parametrize(("path", "body"), [(CHAT, chat()), (COMPLETIONS, {"model": "tiny", "prompt": "hi"})])
    async def test_handoff_fields_are_refused_by_name(self, field: str, path: str, body: Any) -> None:
        """What the two legs tell each other is not taken from outside."""
        values = {"disaggregated_params": {"request_type": "generation_only"}, "prompt_token_ids": [1]}

        response = await rig().client.post(path, body | {field: values.get(field, "AQAAAA==")})

        assert (response.status, response.error["param"]) == (400, field)

    async def test_a_null_handoff_field_is_no_handoff(self) -> None:
        """Clients that write every field with null are served, and null does not travel on."""
        gateway = rig()

        response = await gateway.client.post(CHAT, chat(disaggregated_params=None))

        assert response.status == 200
        assert not gateway.backend.calls[0].view.disaggregated_params

    async def test_unknown_fields_are_ignored_and_named(self) -> None:
        """Fields nobody knows change nothing; a header names those that are plain, and says how many are not."""
        gateway = rig()

        response = await gateway.client.post(CHAT, chat(weird=1, **{"bad\r\nname": 2}))

        assert (response.status, response.headers["x-packrelay-ignored-fields"]) == (200, "weird, and 1 more")
        assert gateway.parts.metrics.ignored_fields == 2

    async def test_many_unknown_fields_make_no_long_header(self) -> None:
        """The header names sixteen at most."""
        response = await rig().client.post(CHAT, chat(**{f"k{number}": 1 for number in range(10_000)}))

        assert response.headers["x-packrelay-ignored-fields"].endswith("k15, and 9984 more")

    async def test_strict_refuses_unknown_fields(self) -> None:
        """With --strict a field nobody knows is a 400 that names it."""
        response = await rig(strict=True).client.post(CHAT, chat(weird=1))

        assert (response.status, response.error["param"], response.error["code"]) == (400, "weird", "unknown_field")

    async def test_stream_options_need_a_stream(self) -> None:
        """stream_options without stream are refused here, before a worker does."""
        response = await rig().client.post(CHAT, chat(stream_options={"include_usage": True}))

        assert (response.status, response.error["param"]) == (400, "stream_options")

    @pytest.mark.parametrize("fields", [{"temperature": "hot"}, {"stop": [1]}, {"n": 2**63}, {"stream_options": 5}])
    async def test_wrong_types_are_refused_by_name(self, fields: dict[str, Any]) -> None:
        """A field of the wrong type is named in the error."""
        response = await rig().client.post(CHAT, chat(**fields))

        assert response.status == 400
        assert response.error["param"].partition("[")[0] in fields


class TestModels:
    async def test_all_models_are_listed(self) -> None:
        """The list is what the backend serves."""
        response = await rig().client.get("/v1/models")

        assert [model["id"] for model in response.json()["data"]] == ["tiny", "org/large"]

    async def test_a_model_is_found_by_a_name_with_slashes(self) -> None:
        """A model's name may hold slashes."""
        assert (await rig().client.get("/v1/models/org/large")).json()["id"] == "org/large"

    async def test_an_unknown_model_is_not_found(self) -> None:
        """Asking about a model nobody serves is a 404 with OpenAI's code."""
        response = await rig().client.get("/v1/models/nope")

        assert (response.status, response.error["code"]) == (404, "model_not_found")

    @pytest.mark.parametrize("stream", [True, False])
    async def test_generating_with_an_unknown_model_is_a_404(self, stream: bool) -> None:
        """A request for a model nobody serves never reaches the backend, streamed or not."""
        gateway = rig()

        response = await gateway.client.post(CHAT, chat(model="nope", stream=stream))

        assert (response.status, response.error["code"], gateway.backend.calls) == (404, "model_not_found", [])

    async def test_while_no_worker_is_known_a_model_may_yet_come(self) -> None:
        """Before the workers are ready an unknown model is a 503: asking again may help."""
        gateway = rig()
        gateway.backend.names, gateway.backend.serving = [], False

        assert (await gateway.client.post(CHAT, chat())).status == 503


class TestRequestIds:
    async def test_a_clients_id_is_echoed(self) -> None:
        """The client finds its own id in the answer."""
        assert (await rig().client.post(CHAT, chat(), x_request_id="req-1")).headers["x-request-id"] == "req-1"

    @pytest.mark.parametrize("theirs", ["", "x" * 129, "caf\xe9", 'a"b', "a b"])
    async def test_an_id_that_is_no_id_is_replaced(self, theirs: str) -> None:
        """Too long, or not of plain characters: ours is sent instead."""
        gateway = rig()

        response = await gateway.client.post(CHAT, chat(), x_request_id=theirs)

        assert response.headers["x-request-id"] == gateway.backend.calls[0].request_id

    async def test_errors_and_plain_endpoints_have_an_id_too(self) -> None:
        """Every response has an id."""
        gateway = rig()

        assert "x-request-id" in (await gateway.client.get("/nowhere")).headers
        assert "x-request-id" in (await gateway.client.get("/health")).headers


class TestRoutes:
    async def test_an_unknown_path_is_the_openai_object(self) -> None:
        """A path nobody serves is a 404 in the shape that clients parse."""
        response = await rig().client.post("/v9/chat/completions")

        assert (response.status, set(response.error)) == (404, {"message", "type", "param", "code"})

    @pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/responses"])
    async def test_endpoints_that_are_not_built_say_so(self, path: str) -> None:
        """What clients expect and do not find yet is named."""
        response = await rig().client.post(path, {})

        assert (response.status, response.error["message"]) == (404, UNSERVED[path])

    @pytest.mark.parametrize(("method", "path", "allow"), [("GET", CHAT, "POST"), ("DELETE", "/v1/models", "GET")])
    async def test_a_wrong_method_is_told_the_right_one(self, method: str, path: str, allow: str) -> None:
        """A 405 names the methods that are taken."""
        response = await rig().client.ask(method, path)

        assert response.status == 405
        assert allow in response.headers["allow"]
        assert response.error["type"] == "invalid_request_error"

    async def test_a_trailing_slash_is_another_path(self) -> None:
        """No redirect is made from the client's Host header."""
        assert (await rig().client.post(f"{CHAT}/")).status == 404

    @pytest.mark.parametrize("path", ["/v1/models", "/health", "/version", "/metrics", "/openapi.json", "/docs"])
    async def test_head_is_answered_where_get_is(self, path: str) -> None:
        """HEAD has the status of GET."""
        assert (await rig().client.ask("HEAD", path)).status == 200

    async def test_options_names_the_methods(self) -> None:
        """OPTIONS is answered without a key, and without letting browsers in."""
        response = await rig().client.ask("OPTIONS", CHAT, None, {"origin": "https://a.example"})

        assert (response.status, response.headers["allow"]) == (204, "OPTIONS, POST")
        assert not [name for name in response.headers if name.startswith("access-control")]

    async def test_ready_is_told_by_the_workers(self) -> None:
        """Ready follows the workers; live does not."""
        gateway = rig()
        gateway.backend.serving = False

        statuses = [(await gateway.client.get(f"/health{path}")).status for path in ("", "/ready", "/live")]

        assert statuses == [503, 503, 200]

    async def test_docs_need_nothing_from_elsewhere(self) -> None:
        """The page for people lists every path, and loads nothing."""
        response = await rig().client.get("/docs")

        assert CHAT.encode() in response.body
        assert b"src=" not in response.body
        assert response.headers["content-security-policy"].startswith("default-src 'none'")


class TestBrowsers:
    async def test_a_preflight_is_answered_before_the_key(self) -> None:
        """A listed origin is told what it may send."""
        gateway = rig(cors_origin=("https://a.example",))
        headers = {"origin": "https://a.example", "access-control-request-method": "POST"}

        response = await gateway.client.ask("OPTIONS", CHAT, None, headers)

        assert response.status == 204
        assert response.headers["access-control-allow-origin"] == "https://a.example"
        assert response.headers["access-control-allow-headers"] == "authorization, content-type"

    async def test_a_listed_origin_may_read_answers_and_errors(self) -> None:
        """Whatever the answer is, the page may read it."""
        gateway = rig(cors_origin=("https://a.example",))

        for path in (CHAT, "/nowhere"):
            response = await gateway.client.post(path, origin="https://a.example")
            assert response.headers["access-control-allow-origin"] == "https://a.example"

    async def test_another_origin_may_not(self) -> None:
        """An origin that is not listed gets no permission, and caches keep the answers apart."""
        response = await rig(cors_origin=("https://a.example",)).client.post(CHAT, origin="https://b.example")

        assert "access-control-allow-origin" not in response.headers
        assert response.headers["vary"] == "origin"


class TestStreamsThatFail:
    async def test_a_stream_that_ends_in_an_error_counts_as_failed(self) -> None:
        """The record goes to the client as it is, and the request is counted as failed."""
        record = error_record(ServingError(ErrorKind.BAD_WORKER, "The worker was lost."))
        gateway = rig(FakeStream(EVENT, record))

        response = await gateway.client.post(CHAT, chat(stream=True))

        assert response.body == EVENT + record
        assert gateway.parts.metrics.requests["chat", "2xx", "failed"] == 1

    async def test_a_request_over_its_time_is_ended(self) -> None:
        """A backend that ignores the deadline is stopped, and the client is told."""
        gateway = rig(request_timeout=-0.99)
        gateway.backend.hold = True

        response = await gateway.client.post(CHAT, chat())

        assert (response.status, response.error["code"]) == (504, "request_timeout")
        assert gateway.backend.cancelled.is_set()
