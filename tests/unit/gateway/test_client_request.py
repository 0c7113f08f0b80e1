from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request

from ullage.base.errors import UnknownPathError
from ullage.gateway.client_request import ClientRequest, passed_on, read_request
from ullage.gateway.config import GatewayConfig
from ullage.gateway.forwarded import ForwardedHeaders
from ullage.gateway.in_work import InWork


async def read(body: bytes, path: str = "/v1/chat/completions", headers: Any = (), **settings: Any) -> ClientRequest:
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": list(headers),
        "request_id": "r",
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    forwarded = ForwardedHeaders(())
    return await read_request(Request(scope, receive), GatewayConfig(**settings), forwarded, InWork(1), lambda _: None)


def test_what_belongs_to_one_connection_is_not_passed_on():
    headers = [(b"Connection", b"close, X-One"), (b"x-one", b"1"), (b"Keep-Alive", b"5"), (b"x-two", b"2"), (b"a", b"")]
    assert passed_on(headers, frozenset({b"a"})) == [(b"x-two", b"2")]


def test_a_header_that_comes_twice_is_passed_on_twice():
    headers = [(b"x-two", b"1"), (b"x-two", b"2")]
    assert passed_on(headers, frozenset()) == headers


@pytest.mark.parametrize(
    ("body", "is_stream"),
    [
        (b'{"stream": true}', True),
        (b'{"stream": false}', False),
        (b'{"stream": 1}', False),
        (b"[]", False),
        (b"{", False),
        (b"\xff", False),
        (b"[" * 100_000, False),
    ],
)
async def test_whether_a_stream_is_asked_for(body, is_stream):
    assert (await read(body)).is_stream is is_stream


async def test_only_some_streams_end_with_done():
    assert (await read(b"{}")).ends_with_done
    assert not (await read(b"{}", "/v1/responses")).ends_with_done


async def test_prompts_with_the_same_beginning_have_the_same_key():
    one, same, other = [
        (await read(b'{"prompt": "%s"}' % prompt, sticky_bytes=8)).sticky_key
        for prompt in (b"a long prompt", b"a long story", b"another one")
    ]
    assert one == same != other
    assert one is not None


async def test_without_a_setting_there_is_no_key():
    assert (await read(b'{"prompt": "x"}')).sticky_key is None
    assert (await read(b"{}", sticky_bytes=8)).sticky_key is None


async def test_a_header_is_the_key_before_the_prompt_is():
    settings = {"sticky_bytes": 8, "sticky_header": "X-Session"}
    with_header = await read(b'{"prompt": "x"}', headers=[(b"x-session", b"s")], **settings)
    assert with_header.sticky_key == b"header:s"
    assert (await read(b'{"prompt": "x"}', **settings)).sticky_key == b'prompt:"x"'


@pytest.mark.parametrize("path", ["/v1/../metrics", "/v1/.", "/v1/a/./b"])
async def test_a_path_that_leads_elsewhere_is_refused(path):
    with pytest.raises(UnknownPathError):
        await read(b"", path)
