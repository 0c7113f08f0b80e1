"""What schemathesis does to each request before it is sent: valid ones ask for little, so that many fit in the time."""

from __future__ import annotations

from typing import Any

import schemathesis

MOST_TOKENS = 16
NUMBER_BOUND = 2**31
ENOUGH_SECONDS = 600


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Fields that are wrong stay as they are."""
    if not isinstance(body, dict):
        return body
    given = [name for name in ("max_tokens", "max_completion_tokens") if body.get(name) is not None]
    for name in given:
        if type(body[name]) is int and MOST_TOKENS < body[name] < NUMBER_BOUND:
            body[name] = MOST_TOKENS
    if not given and "model" in body:
        body["max_tokens"] = MOST_TOKENS
    seconds = body.get("request_timeout")
    if isinstance(seconds, int | float) and seconds > 0:
        body["request_timeout"] = ENOUGH_SECONDS  # a deadline that is over is a 504, and rightly so
    return body


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """The same for the header."""
    if case.headers is not None:
        case.headers.pop("x-request-timeout", None)
