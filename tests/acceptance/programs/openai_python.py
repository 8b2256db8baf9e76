"""OpenAI's own client for Python: whole answers, streams, tools, structured output, errors as its classes."""

import os
from typing import Any

import openai
from openai import OpenAI
from pydantic import BaseModel

MODEL = os.environ["ACCEPTANCE_MODEL"]


class Cat(BaseModel):
    """A structured answer."""

    name: str
    age: int


def main() -> None:
    """Raises AssertionError for what is not as the client expects."""
    with OpenAI(max_retries=0) as client:
        assert MODEL in [model.id for model in client.models.list()]
        assert client.models.retrieve(MODEL).id == MODEL
        answers(client)
        streams(client)
        structured(client)
        errors(client)


def answers(client: OpenAI) -> None:
    """Chat and completions, whole."""
    chat = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Say hi."}],
        max_completion_tokens=8,
        logprobs=True,
        top_logprobs=2,
    )
    assert chat.choices[0].message.content
    assert chat.choices[0].logprobs is not None
    assert chat.choices[0].logprobs.content
    text = client.completions.create(model=MODEL, prompt=["One", "Two"], max_tokens=4)
    assert [choice.index for choice in text.choices] == [0, 1]


def streams(client: OpenAI) -> None:
    """A chat stream with its usage, and the client's own accumulation of one."""
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Say hi."}],
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[-1].usage is not None
    # The client takes a finish reason of "length" for a failure here.
    with client.chat.completions.stream(
        model=MODEL, messages=[{"role": "user", "content": "Say hi."}], stop=[".", "!"], temperature=0
    ) as stream:
        assert stream.get_final_completion().choices[0].message.content


def structured(client: OpenAI) -> None:
    """A parsed answer, and a forced call."""
    parsed = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "Describe a cat."}],
        response_format=Cat,
        max_tokens=200,
        temperature=0,
    )
    assert isinstance(parsed.choices[0].message.parsed, Cat)
    called = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Which cat?"}],
        tools=[openai.pydantic_function_tool(Cat)],
        tool_choice="required",
        max_tokens=200,
        temperature=0,
    )
    assert called.choices[0].finish_reason == "tool_calls"


def errors(client: OpenAI) -> None:
    """Each refusal is the class that clients catch, with the error object in it."""
    refusals: list[tuple[type[openai.APIStatusError], dict[str, Any]]] = [
        (openai.NotFoundError, {"model": "no-such"}),
        (openai.BadRequestError, {"temperature": 9.0}),
    ]
    for expected, fields in refusals:
        refused = refusal(client, {"model": MODEL, "messages": [{"role": "user", "content": "a"}]} | fields)
        assert isinstance(refused, expected), fields
        assert refused.body is not None


def refusal(client: OpenAI, fields: dict[str, Any]) -> openai.APIStatusError | None:
    """How a request is refused. Any: fields of every type."""
    try:
        client.chat.completions.create(**fields)
    except openai.APIStatusError as error:
        return error
    return None


if __name__ == "__main__":
    main()
