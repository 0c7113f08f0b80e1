"""Reads a request body within bounds, and makes a request of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from ullage.base.errors import BodyTimeoutError, BodyTooLargeError, InvalidRequestError
from ullage.protocol.disconnect import ClientLeftError
from ullage.protocol.fields import RequestFields, check_extra_fields
from ullage.protocol.json_text import parse_json_object, validate
from ullage.service.service import Service

Fields = TypeVar("Fields", bound=RequestFields)

QUICK_BODY_BYTES = 1 << 16
"""A body up to this size is parsed in less time than it takes to hand it to a thread and back."""


async def read_fields(
    service: Service, request: Request, model: type[Fields] | Callable[[Mapping[str, object]], type[Fields]]
) -> tuple[Fields, tuple[str, ...]]:
    """The request, and the names of fields that had no effect.

    :param model: what the body must be, or what says so by the body's own fields
    :raises InvalidRequestError: not JSON, or a field is missing, malformed or not supported
    :raises BodyTooLargeError, QueueFullError: refused before the rest is read
    """
    model_of = (lambda _: model) if isinstance(model, type) else model
    _check_content_type(request.headers)
    with service.body_room.body() as take_room:
        body = await _read_body(service, request, take_room)
        if len(body) <= QUICK_BODY_BYTES:
            return _parse(model_of, body)
        return await service.off_loop(_parse, model_of, body)


def _parse(model_of: Callable[[Mapping[str, object]], type[Fields]], body: bytes) -> tuple[Fields, tuple[str, ...]]:
    value = parse_json_object(body)
    fields = validate(model_of(value), value)
    return fields, check_extra_fields(fields.extra_fields())


def _check_content_type(headers: Mapping[str, str]) -> None:
    kind = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise InvalidRequestError("the body must be JSON", hint="send the header content-type: application/json")


async def _read_body(service: Service, request: Request, take_room: Callable[[int], None]) -> bytes:
    """Counts while reading: neither a wrong Content-Length nor chunked encoding gets past the limit."""
    config = service.config
    limit = config.max_body_bytes
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(config.body_timeout_seconds) as clock:
            with _ends_with(service.cut_off, clock):
                async for part in request.stream():
                    if len(body) + len(part) > limit:
                        raise _too_large(limit)
                    take_room(len(part))
                    body += part
    except TimeoutError:
        if service.cut_off.done():
            raise service.stopping_error() from None
        message = f"the body did not arrive within {config.body_timeout_seconds:g} s"
        raise BodyTimeoutError(message) from None
    except ClientDisconnect:
        raise ClientLeftError from None
    return bytes(body)


@contextmanager
def _ends_with(event: asyncio.Future[None], clock: asyncio.Timeout) -> Iterator[None]:
    """Lets the clock run out when the event comes."""

    def run_out(_: asyncio.Future[None]) -> None:
        if not clock.expired():  # one whose wait is just ending can't be set again
            clock.reschedule(asyncio.get_running_loop().time())

    event.add_done_callback(run_out)
    try:
        yield
    finally:
        event.remove_done_callback(run_out)


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"the body is larger than this server's limit of {limit} bytes")
