"""instructor: a typed answer by each of the ways it asks for one."""

import os

import instructor
from openai import OpenAI
from pydantic import BaseModel

MODEL = os.environ["ACCEPTANCE_MODEL"]


class Person(BaseModel):
    """What is asked for."""

    name: str
    age: int


def main() -> None:
    """Raises if an answer is not a person."""
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(OpenAI(max_retries=0), mode=mode)
        person = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Ada is 36 years old. Answer with her name and age."}],
            response_model=Person,
            max_retries=3,
            max_tokens=200,
            temperature=0,
        )
        assert isinstance(person, Person), mode


if __name__ == "__main__":
    main()
