"""The one table: which error becomes which HTTP answer.

    UllageError (ullage.base.errors)
    ├── RequestError
    │   ├── UnknownPathError          nothing lives at this address
    │   ├── MethodNotAllowedError     something does, but not for this method
    │   ├── BodyTooLargeError         the body exceeds the server's limit
    │   └── BodyTimeoutError          the body did not arrive in time
    └── EngineError
        └── ServerStoppingError       the server is on its way down

The errors above can only happen over HTTP, so they live here. Clients of the OpenAI API retry 408, 409, 429 and 5xx
on their own; ``x-should-retry: false`` tells them that the same request can never succeed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from ullage.base.errors import (
    ContextLengthError,
    EngineError,
    InvalidRequestError,
    KVCapacityError,
    ModelNotFoundError,
    QueueFullError,
    RequestError,
    UllageError,
)


class UnknownPathError(RequestError):
    """Nothing lives at this address."""


class MethodNotAllowedError(RequestError):
    """The address exists, but not for this method.

    :param allow: value of the ``Allow`` header
    """

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class BodyTooLargeError(RequestError):
    """The request body exceeds the server's limit."""


class BodyTimeoutError(RequestError):
    """The request body did not arrive in time."""


class ServerStoppingError(EngineError):
    """The server is stopping: it takes no new request, and what still runs may be ended.

    :param retry_after_seconds: when another process may be expected to answer
    """

    def __init__(self, message: str, *, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """How one class of error is told to a client."""

    status: int
    type: str
    code: str | None
    never_retry: bool = False
    """Sends ``x-should-retry: false``; otherwise the client's own rule holds (408, 409, 429 and 5xx, as ``Retry-After``
    says)."""


ERROR_TABLE: Mapping[type[Exception], ErrorRow] = {
    InvalidRequestError: ErrorRow(400, "invalid_request_error", None, never_retry=True),
    ContextLengthError: ErrorRow(400, "invalid_request_error", "context_length_exceeded", never_retry=True),
    KVCapacityError: ErrorRow(400, "invalid_request_error", "kv_capacity_exceeded", never_retry=True),
    ModelNotFoundError: ErrorRow(404, "invalid_request_error", "model_not_found", never_retry=True),
    UnknownPathError: ErrorRow(404, "invalid_request_error", "unknown_url", never_retry=True),
    MethodNotAllowedError: ErrorRow(405, "invalid_request_error", "method_not_allowed", never_retry=True),
    BodyTimeoutError: ErrorRow(408, "invalid_request_error", "request_timeout"),
    BodyTooLargeError: ErrorRow(413, "invalid_request_error", "request_too_large", never_retry=True),
    RequestError: ErrorRow(400, "invalid_request_error", None, never_retry=True),
    QueueFullError: ErrorRow(429, "requests", "queue_full"),
    ServerStoppingError: ErrorRow(503, "server_error", "server_stopping"),
    EngineError: ErrorRow(503, "server_error", "engine_failed"),
    UllageError: ErrorRow(500, "server_error", None),
    Exception: ErrorRow(500, "server_error", "internal_error"),
}
"""The nearest class in an error's ancestry decides; everything else is a bug of ours, and says so."""

INTERNAL_ERROR_MESSAGE = "internal error: the server's log has the details under this answer's x-request-id"

MAX_MESSAGE_CHARS = 2000
MAX_PARAM_CHARS = 200


class ErrorDetail(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """All four keys of ``error`` are always there."""

    error: ErrorDetail


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """A whole answer: status, headers, body."""

    status: int
    body: ErrorBody
    headers: Mapping[str, str] = field(default_factory=dict)


def error_reply(error: Exception) -> ErrorReply:
    """The answer to an error. What isn't ours is told without its text, which may hold anything."""
    row = next(ERROR_TABLE[cls] for cls in type(error).__mro__ if cls in ERROR_TABLE)
    message = str(error) if isinstance(error, UllageError) else INTERNAL_ERROR_MESSAGE
    param = error.param if isinstance(error, RequestError) else None
    detail = ErrorDetail(
        message=_cut(message, MAX_MESSAGE_CHARS),
        type=row.type,
        param=None if param is None else _cut(param, MAX_PARAM_CHARS),
        code=row.code,
    )
    return ErrorReply(row.status, ErrorBody(error=detail), _headers(row, error))


def _headers(row: ErrorRow, error: Exception) -> dict[str, str]:
    headers = {"x-should-retry": "false"} if row.never_retry else {}
    if isinstance(error, QueueFullError | ServerStoppingError):
        # The HTTP header counts whole seconds; OpenAI's clients read the finer one first.
        headers["retry-after"] = str(math.ceil(error.retry_after_seconds))
        headers["retry-after-ms"] = str(math.ceil(error.retry_after_seconds * 1000))
    if isinstance(error, MethodNotAllowedError):
        headers["allow"] = error.allow
    return headers


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"
