"""A client's request as it is passed on: read within bounds, its header cleaned."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request

from ullage.base.errors import BodyTimeoutError, BodyTooLargeError, UnknownPathError
from ullage.gateway.config import GatewayConfig
from ullage.gateway.forwarded import NAMES, ForwardedHeaders
from ullage.gateway.in_work import InWork
from ullage.protocol.disconnect import ClientLeftError
from ullage.protocol.request_id import REQUEST_ID_HEADER

Headers = list[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade".split()
)
"""RFC 9110, section 7.6.1, and RFC 9112. They belong to one connection."""
OURS = frozenset({b"host", b"content-length", b"expect", b"accept-encoding", REQUEST_ID_HEADER.encode()})
"""Of a request: made anew for the replica. A compressed stream can't be cut into events, so none is asked for."""
STREAMING_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})
"""Streams that end with ``[DONE]``, or with an error."""


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """Everything that a replica gets."""

    method: str
    target: bytes
    """Path and query as the client sent them."""
    headers: Headers
    body: bytes
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
    if any(segment in (".", "..") for segment in path.split("/")):  # another server may understand another address
        raise UnknownPathError("there is nothing at this address")
    body = await _read_body(request, config, in_work, take)
    fields = _fields(body) if request.method == "POST" else {}
    query: bytes = request.scope["query_string"]
    headers = passed_on(request.headers.raw, OURS | NAMES) + forwarded.of(request.scope)
    headers += [(b"accept-encoding", b"identity"), (REQUEST_ID_HEADER.encode(), request.scope["request_id"].encode())]
    return ClientRequest(
        method=request.method,
        target=request.scope["raw_path"] + (b"?" + query if query else b""),
        headers=headers,
        body=body,
        ends_with_done=path in STREAMING_PATHS,
        is_stream=fields.get("stream") is True,
        sticky_key=_sticky_key(request, fields, config),
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


def _fields(body: bytes) -> dict[str, object]:
    """Of a JSON object; what is none is the replica's to refuse."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _sticky_key(request: Request, fields: dict[str, object], config: GatewayConfig) -> bytes | None:
    if config.sticky_header is not None and (given := request.headers.get(config.sticky_header)):
        return b"header:" + given.encode("latin-1")
    prompt = fields.get("messages", fields.get("prompt"))
    if config.sticky_bytes == 0 or prompt is None:
        return None
    return b"prompt:" + json.dumps(prompt, ensure_ascii=True).encode()[: config.sticky_bytes]
