from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from starlette.requests import Request

from ullage.base.errors import UnknownPathError
from ullage.gateway import client_request
from ullage.gateway.client_request import QUICK_BODY_BYTES, ClientRequest, passed_on, read_request
from ullage.gateway.config import GatewayConfig
from ullage.gateway.forwarded import ForwardedHeaders
from ullage.gateway.in_work import InWork
from ullage.protocol.json_text import MAX_JSON_VALUES, parse_json_object


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


async def test_a_large_body_is_looked_into_beside_the_event_loop(monkeypatch):
    threads = []

    def parse(body: bytes) -> dict[str, object]:
        threads.append(threading.current_thread())
        return parse_json_object(body)

    monkeypatch.setattr(client_request, "parse_json_object", parse)
    small, large = b'{"stream": true}', b'{"stream": true, "prompt": "%s"}' % (b"x" * QUICK_BODY_BYTES)
    assert [(await read(body)).is_stream for body in (small, large)] == [True, True]
    here, elsewhere = threads
    assert here is threading.main_thread() is not elsewhere


async def test_a_body_with_more_values_than_any_replica_takes_is_not_parsed():
    tokens = b",".join([b"1"] * (MAX_JSON_VALUES + 2))
    read_so = await read(b'{"stream": true, "prompt": [%s]}' % tokens, sticky_bytes=8)
    assert (read_so.is_stream, read_so.sticky_key) == (False, None)


async def test_no_more_of_a_prompt_is_written_than_its_key_needs(monkeypatch):
    written = []

    class Counting(json.JSONEncoder):
        def iterencode(self, o, _one_shot=False):
            for piece in super().iterencode(o, _one_shot):
                written.append(piece)
                yield piece

    monkeypatch.setattr(client_request, "JSON", Counting())
    key = (await read(json.dumps({"prompt": list(range(10_000))}).encode(), sticky_bytes=8)).sticky_key
    assert key == b"prompt:[0, 1, 2"
    assert len(written) < 10


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
