"""STR-06: behind a proxy with its default settings, each event arrives when it is made."""

from __future__ import annotations

import json
import statistics
import time
import zlib
from dataclasses import dataclass
from typing import Any

import pytest
from tests.nginx import nginx
from tests.openai_api import CHAT, api_of

NUM_TOKENS = 200


@dataclass(frozen=True)
class Arrivals:
    headers: dict[str, str]
    seconds: list[float]
    """When each event came."""
    num_running_at_first_text: int


async def arrivals(url: str, direct: Any, encoding: str) -> Arrivals:
    """Of a stream of ``NUM_TOKENS`` tokens, read as the bytes come."""
    fields = {"messages": [{"role": "user", "content": "Say hi"}], "max_tokens": NUM_TOKENS, "ignore_eos": True}
    unpack = zlib.decompressobj(wbits=31).decompress if encoding == "gzip" else bytes
    seconds, text, running = [], b"", None
    async with api_of(url) as api, api.open_stream(CHAT, **fields, temperature=0) as answer:
        assert answer.headers.get("content-encoding", "identity") == encoding
        async for data in answer.aiter_raw():
            text += unpack(data)
            events = text.count(b"\n\n")
            seconds += [time.monotonic()] * (events - len(seconds))
            if running is None and events >= 2:
                running = (await direct.ledger())["requests"]["running"]
    *events, done, end = text.decode("utf-8").split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    assert "".join(json.loads(e.removeprefix("data: "))["choices"][0]["delta"].get("content", "") for e in events)
    return Arrivals(dict(answer.headers), seconds, running or 0)


def came_one_by_one(arrived: Arrivals) -> bool:
    """Half of the gaps or more are as long as a token takes, more or less; in lumps nearly all would be nothing."""
    gaps = [later - earlier for earlier, later in zip(arrived.seconds, arrived.seconds[1:], strict=False)]
    return statistics.median(gaps) > statistics.mean(gaps) / 10


async def test_a_stream_says_that_it_is_not_to_be_kept_back(server, api):
    headers = (await arrivals(server.url, api, "identity")).headers
    assert headers["content-type"].partition(";")[0] == "text/event-stream"
    assert headers["cache-control"] in ("no-cache", "no-store")
    assert headers["x-accel-buffering"] == "no"
    assert "content-length" not in headers


@pytest.mark.parametrize(("directives", "encoding"), [("gzip off;", "identity"), ("", "gzip")], ids=["plain", "gzip"])
async def test_events_come_one_by_one_through_a_proxy_with_its_default_settings(
    server, api, tmp_path, directives, encoding
):
    with nginx(tmp_path, server.url, directives) as url:
        arrived = await arrivals(url, api, encoding)
    assert arrived.num_running_at_first_text == 1
    assert len(arrived.seconds) > NUM_TOKENS / 2
    assert came_one_by_one(arrived)


async def test_a_proxy_that_keeps_events_back_is_told_apart(server, api, tmp_path):
    """The measure itself: it must see lumps where there are some."""
    with nginx(tmp_path, server.url, "proxy_ignore_headers X-Accel-Buffering; gzip off;") as url:
        assert not came_one_by_one(await arrivals(url, api, "identity"))
