"""What schemathesis needs to know of the server under test, loaded by it (SCHEMATHESIS_HOOKS): generated requests ask for a model
that is there, and only streams have stream options, or nearly all of them would end at the first check. Completions are not
streamed: the document knows the type of that answer for chat only.
"""

import os
from typing import Any

import schemathesis
from schemathesis import HookContext

MODEL_VARIABLE = "PACKRELAY_TEST_MODEL"


@schemathesis.hook
def map_body(context: HookContext, body: Any) -> Any:
    """A generated body made to reach the model. Any: it is whatever was generated."""
    if isinstance(body, dict):
        if isinstance(body.get("model"), str):
            body["model"] = os.environ[MODEL_VARIABLE]
        if context.operation is not None and context.operation.path == "/completions":
            body.pop("stream", None)
        if body.get("stream") is not True:
            body.pop("stream_options", None)
    return body
