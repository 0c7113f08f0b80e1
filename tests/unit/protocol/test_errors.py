from __future__ import annotations

import re

import pytest

from ullage.base import errors as base_errors
from ullage.base.errors import (
    BodyTooLargeError,
    ConfigError,
    ContextLengthError,
    EngineError,
    EngineRestartingError,
    InvalidRequestError,
    KVCapacityError,
    MethodNotAllowedError,
    ModelNotFoundError,
    QueueFullError,
    ServerStoppingError,
    UllageError,
)
from ullage.protocol import errors as protocol_errors
from ullage.protocol.errors import INTERNAL_ERROR_MESSAGE, error_reply


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (InvalidRequestError("no"), 400, "invalid_request_error", None),
        (ContextLengthError("no"), 400, "invalid_request_error", "context_length_exceeded"),
        (KVCapacityError("no"), 400, "invalid_request_error", "kv_capacity_exceeded"),
        (ModelNotFoundError("no"), 404, "invalid_request_error", "model_not_found"),
        (BodyTooLargeError("no"), 413, "invalid_request_error", "request_too_large"),
        (QueueFullError("no", retry_after_seconds=1.0), 429, "requests", "queue_full"),
        (EngineError("no"), 503, "server_error", "engine_failed"),
        (ServerStoppingError("no", retry_after_seconds=1.0), 503, "server_error", "server_stopping"),
        (EngineRestartingError("no", retry_after_seconds=1.0), 503, "server_error", "engine_restarting"),
        (ConfigError("no"), 500, "server_error", None),
        (KeyError("secret"), 500, "server_error", "internal_error"),
    ],
)
def test_each_class_has_its_status_type_and_code(error, status, kind, code):
    reply = error_reply(error)
    assert (reply.status, reply.body["error"]["type"], reply.body["error"]["code"]) == (status, kind, code)


def test_the_body_always_has_all_four_keys():
    reply = error_reply(InvalidRequestError("n is wrong", param="n", hint="send 1"))
    assert reply.body == {
        "error": {
            "message": "n is wrong (send 1)",
            "type": "invalid_request_error",
            "param": "n",
            "code": None,
        }
    }
    assert error_reply(EngineError("no")).body["error"].keys() == reply.body["error"].keys()


def test_an_error_that_is_not_ours_keeps_its_text_to_itself():
    assert error_reply(ValueError("/home/someone")).body["error"]["message"] == INTERNAL_ERROR_MESSAGE


def test_what_can_never_succeed_says_so_and_what_may_says_when():
    assert error_reply(KVCapacityError("no")).headers == {"x-should-retry": "false"}
    assert error_reply(QueueFullError("no", retry_after_seconds=1.25)).headers == {
        "retry-after": "2",
        "retry-after-ms": "1250",
    }


def test_a_wrong_method_is_told_the_right_ones():
    assert error_reply(MethodNotAllowedError("no", allow="GET")).headers["allow"] == "GET"


def test_long_texts_are_cut():
    detail = error_reply(InvalidRequestError("x" * 10_000, param="y" * 10_000)).body["error"]
    assert len(detail["message"]) == protocol_errors.MAX_MESSAGE_CHARS
    assert len(detail["param"] or "") == protocol_errors.MAX_PARAM_CHARS


@pytest.mark.parametrize(("seconds", "told"), [(0.0, 1), (0.2, 1), (119.5, 120), (1e300, 120), (float("nan"), 1)])
def test_a_client_is_told_to_come_back_neither_at_once_nor_never(seconds, told):
    headers = error_reply(QueueFullError("full", retry_after_seconds=seconds)).headers
    assert int(headers["retry-after"]) == told
    assert 1000 <= int(headers["retry-after-ms"]) <= 120_000


def subclasses(cls: type[Exception]) -> set[type[Exception]]:
    return {cls}.union(*map(subclasses, cls.__subclasses__()))


def test_every_error_is_in_the_tree_and_in_its_drawing():
    errors = {cls for cls in subclasses(UllageError) if cls.__module__.startswith("ullage.")}
    assert {cls.__module__ for cls in errors} == {base_errors.__name__}
    drawn = re.findall(r"^    [│├└─ ]*(\w+Error)\b", base_errors.__doc__ or "", re.MULTILINE)
    assert {cls.__name__ for cls in errors} == set(drawn)


def test_every_error_a_request_can_meet_has_a_row_of_its_own():
    classes = {cls for root in (base_errors.RequestError, EngineError) for cls in subclasses(root)}
    assert len(classes) > 8
    assert classes <= set(protocol_errors.ERROR_TABLE)
