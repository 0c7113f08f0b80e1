"""A client's request as it is passed on: read within bounds, its header cleaned."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request

from ullage.base.errors import BodyTimeoutError, BodyTooLargeError, InvalidRequestError, UnknownPathError
from ullage.gateway.config import GatewayConfig
from ullage.gateway.forwarded import NAMES, ForwardedHeaders
from ullage.gateway.in_work import InWork
from ullage.protocol.disconnect import ClientLeftError
from ullage.protocol.json_text import parse_json_object
from ullage.protocol.request_id import REQUEST_ID_HEADER

Headers = list[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade".split()
)
"""RFC 9110, section 7.6.1, and RFC 9112. They belong to one connection."""
OURS = frozenset({b"host", b"content-length", b"expect", b"accept-encoding", REQUEST_ID_HEADER.encode()})
"""Of a request: made anew for the replica. A compressed stream can't be cut into events, so none is asked for."""
QUICK_BODY_BYTES = 1 << 16
"""A body up to this size is parsed in less time than it takes to hand it to a thread and back."""
JSON = json.JSONEncoder()
STREAMING_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})
"""Streams that end with ``[DONE]``, or with an error."""


class HeldBody:
    """Sent to one replica after another. The HTTP client keeps its request, and this with it, until the answer's end;
    the bytes are let go before.
    """

    def __init__(self, data: bytes) -> None:
        self.num_bytes = len(data)
        self._data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data

    def let_go(self) -> None:
        self._data = b""


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """Everything that a replica gets."""

    method: str
    target: bytes
    """Path and query as the client sent them."""
    headers: Headers
    body: HeldBody
    ends_with_done: bool
    """Whether an event stream that answers it must end with ``[DONE]``."""
    is_stream: bool
    sticky_key: bytes | None


async def read_request(
    request: Request,
    config: GatewayConfig,
    forwarded: ForwardedHeaders,
    in_work: InWork,
    take: Callable[[int], None],
) -> ClientRequest:
    """:param take: told of each piece of the body; raises where there is no room
    :raises UnknownPathError, BodyTooLargeError, BodyTimeoutError, ClientLeftError: as they say
    """
    path: str = request.scope["path"]
    query: bytes = request.scope["query_string"]
    target: bytes = request.scope["raw_path"] + (b"?" + query if query else b"")
    # Another server may understand another address; a # is of none.
    if any(segment in (".", "..") for segment in path.split("/")) or b"#" in target:
        raise UnknownPathError("there is nothing at this address")
    body = await _read_body(request, config, in_work, take)
    is_stream, begins = await _looked_into(body, config.sticky_bytes) if request.method == "POST" else (False, None)
    headers = passed_on(request.headers.raw, OURS | NAMES) + forwarded.of(request.scope)
    headers += [(b"accept-encoding", b"identity"), (REQUEST_ID_HEADER.encode(), request.scope["request_id"].encode())]
    return ClientRequest(
        method=request.method,
        target=target,
        headers=headers,
        body=HeldBody(body),
        ends_with_done=path in STREAMING_PATHS,
        is_stream=is_stream,
        sticky_key=_sticky_key(request, begins, config),
    )


def passed_on(headers: Iterable[tuple[bytes, bytes]], without: frozenset[bytes]) -> Headers:
    """The headers that go to the other side.

    :param headers: lower-case or not
    :param without: further names, lower-case
    """
    kept = [(name.lower(), value) for name, value in headers]
    named = {part.strip().lower() for name, value in kept if name == b"connection" for part in value.split(b",")}
    return [(name, value) for name, value in kept if name not in HOP_BY_HOP | named | without]


async def _read_body(request: Request, config: GatewayConfig, in_work: InWork, take: Callable[[int], None]) -> bytes:
    limit = config.max_body_bytes
    declared = request.headers.get("content-length", "0")
    too_large = BodyTooLargeError(f"the body is larger than this gateway's limit of {limit} bytes")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise too_large
    seconds = config.body_timeout_seconds
    body = bytearray()
    try:
        async with in_work.within(seconds, BodyTimeoutError(f"the body did not arrive within {seconds:g} s")):
            async for part in request.stream():
                if len(body) + len(part) > limit:
                    raise too_large
                take(len(part))
                body += part
    except ClientDisconnect:
        raise ClientLeftError from None
    return bytes(body)


async def _looked_into(body: bytes, sticky_bytes: int) -> tuple[bool, bytes | None]:
    if len(body) <= QUICK_BODY_BYTES:
        return _look_into(body, sticky_bytes)
    return await asyncio.to_thread(_look_into, body, sticky_bytes)


def _look_into(body: bytes, sticky_bytes: int) -> tuple[bool, bytes | None]:
    """Whether a stream is asked for, and how the prompt begins. What is no request is the replica's to refuse."""
    try:
        fields = parse_json_object(body)
    except InvalidRequestError:
        return False, None
    prompt = fields.get("messages", fields.get("prompt"))
    begins = None if sticky_bytes == 0 or prompt is None else _beginning(prompt, sticky_bytes)
    return fields.get("stream") is True, begins


def _beginning(prompt: object, num_bytes: int) -> bytes:
    """Of the prompt as JSON in ASCII; the rest is not made."""
    text = b""
    for piece in JSON.iterencode(prompt):
        text += piece[:num_bytes].encode("ascii")
        if len(text) >= num_bytes:
            break
    return text[:num_bytes]


def _sticky_key(request: Request, begins: bytes | None, config: GatewayConfig) -> bytes | None:
    if config.sticky_header is not None and (given := request.headers.get(config.sticky_header)):
        return b"header:" + given.encode("latin-1")
    return None if begins is None else b"prompt:" + begins
