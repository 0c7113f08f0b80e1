"""The one table: which error of ``ullage.base.errors`` becomes which HTTP answer.

Clients of the OpenAI API retry 408, 409, 429 and 5xx on their own; ``x-should-retry: false`` tells them that the same
request can never succeed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NotRequired

from typing_extensions import TypedDict

from ullage.base.errors import (
    AccessStoreError,
    AuditLogError,
    AuthenticationError,
    BodyTimeoutError,
    BodyTooLargeError,
    ContextLengthError,
    DeadlineError,
    EngineError,
    EngineRestartingError,
    HeaderTooLargeError,
    InvalidRequestError,
    KVCapacityError,
    MethodNotAllowedError,
    ModelNotFoundError,
    NoReplicaError,
    PermissionDeniedError,
    QueueFullError,
    QuotaExceededError,
    RateLimitError,
    ReplicaError,
    ReplicaTimeoutError,
    RequestError,
    ServerStoppingError,
    UllageError,
    UnknownPathError,
)


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
    AuthenticationError: ErrorRow(401, "invalid_request_error", "invalid_api_key", never_retry=True),
    PermissionDeniedError: ErrorRow(403, "invalid_request_error", "permission_denied", never_retry=True),
    ModelNotFoundError: ErrorRow(404, "invalid_request_error", "model_not_found", never_retry=True),
    UnknownPathError: ErrorRow(404, "invalid_request_error", "unknown_url", never_retry=True),
    MethodNotAllowedError: ErrorRow(405, "invalid_request_error", "method_not_allowed", never_retry=True),
    BodyTimeoutError: ErrorRow(408, "invalid_request_error", "request_timeout"),
    BodyTooLargeError: ErrorRow(413, "invalid_request_error", "request_too_large", never_retry=True),
    HeaderTooLargeError: ErrorRow(431, "invalid_request_error", "header_too_large", never_retry=True),
    RequestError: ErrorRow(400, "invalid_request_error", None, never_retry=True),
    QueueFullError: ErrorRow(429, "requests", "queue_full"),
    RateLimitError: ErrorRow(429, "requests", "rate_limit_exceeded"),
    QuotaExceededError: ErrorRow(429, "insufficient_quota", "insufficient_quota", never_retry=True),
    DeadlineError: ErrorRow(504, "server_error", "deadline_exceeded", never_retry=True),
    ServerStoppingError: ErrorRow(503, "server_error", "server_stopping"),
    EngineRestartingError: ErrorRow(503, "server_error", "engine_restarting"),
    AccessStoreError: ErrorRow(503, "server_error", "access_store_unavailable"),
    AuditLogError: ErrorRow(503, "server_error", "audit_log_unavailable"),
    EngineError: ErrorRow(503, "server_error", "engine_failed"),
    NoReplicaError: ErrorRow(503, "server_error", "no_replica"),
    ReplicaTimeoutError: ErrorRow(504, "server_error", "replica_timeout"),
    ReplicaError: ErrorRow(502, "server_error", "replica_failed"),
    UllageError: ErrorRow(500, "server_error", None),
    Exception: ErrorRow(500, "server_error", "internal_error"),
}
"""The nearest class in an error's ancestry decides; everything else is a bug of ours, and says so."""

INTERNAL_ERROR_MESSAGE = "internal error: the server's log has the details under this answer's x-request-id"

MAX_MESSAGE_CHARS = 2000
MAX_PARAM_CHARS = 200

SHORTEST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 120.0
"""An estimate outside these bounds is told as the bound: nobody should hammer, nobody should give up for good."""


COMES_BACK = (
    QueueFullError,
    RateLimitError,
    EngineRestartingError,
    AccessStoreError,
    AuditLogError,
    ServerStoppingError,
    NoReplicaError,
)
"""Errors that know when a retry may succeed."""


class ErrorDetail(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None
    details: NotRequired[Mapping[str, int | str]]
    """The numbers behind the message, where there are any."""


class ErrorBody(TypedDict):
    """The first four keys of ``error`` are always there."""

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
    if isinstance(error, RequestError) and error.details is not None:
        detail["details"] = error.details
    return ErrorReply(row.status, ErrorBody(error=detail), _headers(row, error))


def _headers(row: ErrorRow, error: Exception) -> dict[str, str]:
    headers = {"x-should-retry": "false"} if row.never_retry else {}
    if isinstance(error, RateLimitError):
        headers.update(error.headers)
    if isinstance(error, COMES_BACK):
        # The HTTP header counts whole seconds; OpenAI's clients read the finer one first.
        seconds = min(max(SHORTEST_RETRY_SECONDS, error.retry_after_seconds), LONGEST_RETRY_SECONDS)
        headers["retry-after"] = str(math.ceil(seconds))
        headers["retry-after-ms"] = str(math.ceil(seconds * 1000))
    if isinstance(error, ServerStoppingError):
        headers["connection"] = "close"  # the next request had better go elsewhere
    if isinstance(error, AuthenticationError):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, MethodNotAllowedError):
        headers["allow"] = error.allow
    return headers


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"
