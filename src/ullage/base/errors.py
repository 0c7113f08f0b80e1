"""Every error that Ullage raises on purpose.

    UllageError
    ├── ConfigError               a setting that can't be honoured
    ├── ModelFileError            a model file that is damaged, incomplete or not supported
    ├── PlanError                 the memory plan can't hold
    ├── RequestError              one request is wrong or can't be served
    │   ├── InvalidRequestError       a field has a value that can't be honoured
    │   ├── ContextLengthError        prompt + output exceed the model's context
    │   ├── KVCapacityError           the request can never fit in the KV pool
    │   ├── ModelNotFoundError        the request names a model that isn't served
    │   ├── AuthenticationError       no API key, or one that isn't valid
    │   ├── PermissionDeniedError     a valid key that may not do this
    │   ├── QueueFullError            no room to wait in; try again later
    │   ├── RateLimitError            the tenant's allowance is used up for now
    │   ├── QuotaExceededError        the tenant's quota is used up for the day or month
    │   ├── DeadlineError             the request took longer than it may
    │   ├── UnknownPathError          HTTP: nothing lives at this address
    │   ├── MethodNotAllowedError     HTTP: something does, but not for this method
    │   ├── HeaderTooLargeError       HTTP: the header exceeds the server's limit
    │   ├── BodyTooLargeError         HTTP: the body exceeds the server's limit
    │   └── BodyTimeoutError          HTTP: the body did not arrive in time
    ├── EngineError               the engine failed; not the caller's fault
    │   ├── EngineRestartingError     the engine is being started again
    │   ├── AccessStoreError          API keys, limits or quotas can't be read
    │   ├── AuditLogError             the audit log can't be written, and has to be
    │   └── ServerStoppingError       the server is on its way down
    └── ReplicaError              a replica behind the gateway broke off its answer, or gave none
        ├── ReplicaTimeoutError       it was silent for too long
        ├── ReplicaUnreachableError   no connection: it has seen nothing of the request
        └── NoReplicaError            there is none that could be asked

The message says what happened; ``hint`` says what to change. What each class becomes over HTTP stands in one
table, ``ullage.protocol.errors``.
"""

from __future__ import annotations

from collections.abc import Mapping


class UllageError(Exception):
    """Base of the tree.

    :param message: what happened, in one line
    :param hint: what the reader can change to make it work
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigError(UllageError):
    """A setting that can't be honoured. Settings are refused, never adjusted."""


class ModelFileError(UllageError):
    """A model file that is damaged, incomplete or of a kind that isn't supported."""


class PlanError(UllageError):
    """The memory plan can't hold on this machine."""


class RequestError(UllageError):
    """One request is wrong or can't be served.

    :param param: the request field at fault, if there is one
    :param details: the numbers behind the message, for programs
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        hint: str | None = None,
        details: Mapping[str, int | str] | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.param = param
        self.details = details


class InvalidRequestError(RequestError):
    """A field is missing, malformed, out of range or not supported."""


class ContextLengthError(RequestError):
    """The prompt, or prompt + output, exceeds the model's context."""


class KVCapacityError(RequestError):
    """The request needs more KV blocks than the whole pool has: it could never run."""


class ModelNotFoundError(RequestError):
    """The request names a model that this server doesn't serve."""


class QueueFullError(RequestError):
    """The bounded waiting queue is full.

    :param retry_after_seconds: when a retry is likely to succeed
    """

    def __init__(
        self, message: str, *, retry_after_seconds: float, details: Mapping[str, int | str] | None = None
    ) -> None:
        super().__init__(message, details=details)
        self.retry_after_seconds = retry_after_seconds


class AuthenticationError(RequestError):
    """There is no API key with the request, or it isn't a valid one."""


class PermissionDeniedError(RequestError):
    """The API key is valid, but may not do this."""


class RateLimitError(RequestError):
    """The allowance of requests or tokens a minute, or of requests at once, is used up.

    :param retry_after_seconds: when there is room for this request again
    :param headers: of the answer: what is left of which allowance
    """

    def __init__(self, message: str, *, retry_after_seconds: float, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.headers = headers or {}


class QuotaExceededError(RequestError):
    """The quota of a day or a month is used up: a retry within minutes can't help."""


class DeadlineError(RequestError):
    """The request, its time in the queue included, took longer than it may."""


class UnknownPathError(RequestError):
    """Nothing lives at this address."""


class MethodNotAllowedError(RequestError):
    """The address exists, but not for this method.

    :param allow: value of the ``Allow`` header
    """

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class HeaderTooLargeError(RequestError):
    """The request header exceeds the server's limit."""


class BodyTooLargeError(RequestError):
    """The request body exceeds the server's limit."""


class BodyTimeoutError(RequestError):
    """The request body did not arrive in time."""


class EngineError(UllageError):
    """The engine failed while serving; the request itself was fine."""


class EngineRestartingError(EngineError):
    """The engine died or hangs, and is being started again.

    :param retry_after_seconds: when it may be expected to answer
    """

    def __init__(self, message: str, *, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class AccessStoreError(EngineError):
    """API keys, limits or quotas can't be read now: nobody comes in unchecked.

    :param retry_after_seconds: when to try again
    """

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class AuditLogError(EngineError):
    """What the server does can't be written down now, and has to be."""

    retry_after_seconds = 5.0


class ServerStoppingError(EngineError):
    """The server is stopping: it takes no new request, and what still runs may be ended.

    :param retry_after_seconds: when another process may be expected to answer
    """

    def __init__(self, message: str, *, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class ReplicaError(UllageError):
    """A replica behind the gateway couldn't be reached, or broke off its answer."""


class ReplicaTimeoutError(ReplicaError):
    """A replica was silent for longer than the gateway waits."""


class ReplicaUnreachableError(ReplicaError):
    """No connection could be made: the replica has seen nothing of the request."""


class NoReplicaError(ReplicaError):
    """No replica is in rotation.

    :param retry_after_seconds: when one may have come back
    """

    def __init__(self, message: str, *, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
