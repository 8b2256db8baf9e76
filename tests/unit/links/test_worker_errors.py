"""Workers' errors in every shape, as the OpenAI object, with nothing internal in it."""

import time

import pytest

from gateway.links.errors import MAX_MESSAGE_CHARACTERS, lift_error

GENERAL = ("The model server refused the request.", "The model server failed.", "The model server is busy.")


class TestShapes:
    @pytest.mark.parametrize(
        "body",
        [
            b'{"error":"Bad thing."}',
            b'{"error":{"message":"Bad thing."}}',
            b'{"error":{"message":"Bad thing.","type":null,"param":null,"code":400}}',
            b'{"object":"error","message":"Bad thing.","type":null,"param":null,"code":400}',
            b'{"detail":"Bad thing."}',
            b'{"detail":[{"loc":["body"],"msg":"Bad thing.","type":"missing"}]}',
            b'{"detail":{"error":{"message":"Bad thing."}}}',
            b'{"message":"Bad thing."}',
        ],
    )
    def test_message_is_found(self, body: bytes) -> None:
        """The sentence is found wherever a worker puts it, and the type follows from the status when there is none."""
        error = lift_error(body, 400).error

        assert (error.message, error.type, error.param, error.code) == (
            "Bad thing.",
            "invalid_request_error",
            None,
            None,
        )

    def test_our_own_object_is_kept(self) -> None:
        """An error object of our own workers comes through as it was."""
        body = b'{"error":{"message":"Too long.","type":"invalid_request_error","param":"messages[0].content","code":"too_long"}}'

        error = lift_error(body, 400).error

        assert (error.message, error.type, error.param, error.code) == (
            "Too long.",
            "invalid_request_error",
            "messages[0].content",
            "too_long",
        )

    def test_stock_type_is_kept(self) -> None:
        """The type a stock worker names is kept: the breaker tells its own faults by it."""
        assert (
            lift_error(b'{"object":"error","message":"x","type":"BadRequestError"}', 400).error.type
            == "BadRequestError"
        )

    @pytest.mark.parametrize(
        "body",
        [
            *[
                b"",
                b"null",
                b"[]",
                b"1",
                b"{}",
                b"<html><h1>502</h1></html>",
                b"\xff\xfe",
                b'{"error":',
                b'{"error":[1]}',
            ],
            *[
                b"[" * 100_000,
                b'{"detail":[]}',
                b'{"error":{"message":{"a":1}}}',
                b'{"message":""}',
                b'{"error":"\\ud800"}',
            ],
        ],
    )
    @pytest.mark.parametrize("status", [400, 429, 500, 502])
    def test_garbage_becomes_a_general_sentence(self, body: bytes, status: int) -> None:
        """What is no error body gives a sentence by the status, and never an exception."""
        assert lift_error(body, status).error.message in GENERAL


class TestNothingInternal:
    @pytest.mark.parametrize(
        "secret",
        [
            "Cannot connect to host worker-3:8001 ssl:default",
            "Cannot connect to 10.2.3.4",
            "See http://worker.internal:8000/v1/chat",
            "Host gpu01.cluster.local is down",
            "Lookup of gpu01.example.com failed",
            "Connection to localhost refused",
            "Peer [fe80::1:2:3] is gone",
            "No such file: /usr/lib/python3/dist-packages/x",
            "Assertion failed (/src/cpp/tensorrt_llm/batch.cpp:123)",
            "Raised in executor.py",
            'File "x", line 3, in main',
            "Config is ~/models/x",
            "Config is C:\\models\\x",
            "Object at 0x7f3a12345678",
        ],
    )
    def test_sentence_is_left_out(self, secret: str) -> None:
        """A sentence that names a host, a path or an address is left out; the others stay."""
        body = (
            b'{"error":{"message":"Generation failed. %b. Try again."}}'
            % secret.replace("\\", "\\\\").replace('"', '\\"').encode()
        )

        assert lift_error(body, 500).error.message == "Generation failed. Try again."

    def test_traceback_is_cut(self) -> None:
        """Nothing from the start of a traceback on is kept."""
        body = b'{"detail":"Failed.\\nTraceback (most recent call last):\\n  File \\"a.py\\"\\nValueError: secret"}'

        assert lift_error(body, 500).error.message == "Failed."

    @pytest.mark.parametrize(
        "sentence",
        [
            "This model's maximum context length is 8192 tokens, but 9000 were requested.",
            "Invalid value for 'messages[0].content': Expected `str | array`, got `int`.",
            "Use /v1/chat/completions for chat models.",
            "The content type must be application/json; temperature must be >= 0.0 and/or absent.",
            "response_format.json_schema.schema is not valid: '</s>' at 3:12.",
        ],
    )
    def test_useful_sentence_stays(self, sentence: str) -> None:
        """What is written for the client reaches it whole."""
        body = b'{"error":"%b"}' % sentence.encode()

        assert lift_error(body, 400).error.message == sentence

    @pytest.mark.parametrize("field", ["param", "code", "type"])
    def test_names_are_checked_too(self, field: str) -> None:
        """A path in `param`, `code` or `type` is dropped as it would be in the message."""
        body = b'{"error":{"message":"x","%b":"/srv/models/secret"}}' % field.encode()

        error = lift_error(body, 400).error

        assert "secret" not in f"{error.param}{error.code}{error.type}"

    def test_message_is_capped(self) -> None:
        """A message is at most 2048 characters."""
        body = b'{"error":"%b"}' % (b"word " * 2000)

        assert len(lift_error(body, 400).error.message) == MAX_MESSAGE_CHARACTERS

    @pytest.mark.parametrize("filler", [b"a", b"a-", b"a.", b"a:", b"/a", b"1.", b"0x", b". ", b"[", b"\\\\"])
    def test_long_messages_cost_little(self, filler: bytes) -> None:
        """No message makes the search for internals slow."""
        body = b'{"error":"%b"}' % (filler * 500_000)
        began = time.perf_counter()

        lift_error(body, 400)

        assert time.perf_counter() - began < 1.0
