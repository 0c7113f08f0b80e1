"""Streams through the gateway (GW-01): whatever becomes of the replica, a cut answer never looks complete."""

from __future__ import annotations

import asyncio
import json
import tracemalloc

import httpx
import pytest
from tests.gateway_server import CHAT, running_gateway
from tests.http_server import events_of, until
from tests.scripted_upstream import DONE, EVENT_STREAM, Asked, ScriptedUpstream, content, scripted_upstreams

from ullage.gateway import client_request

ROLE = b'data: {"choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": null}]}\n\n'
FIVE = [content(word) for word in ("one", "two", "three", "four", "five")]
STOP = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
OWN_ERROR = b'data: {"error": {"message": "the engine failed", "type": "server_error", "code": "engine_failed"}}\n\n'
BEGIN = [ROLE, *FIVE]


async def begin(asked: Asked, *more: bytes) -> None:
    await asked.stream(*BEGIN, *more)
    await asyncio.sleep(0.02)  # a reset throws away what the other side has not read yet


async def reset_after_five(asked: Asked) -> None:
    await begin(asked)
    asked.reset()


async def closed_without_the_last_chunk(asked: Asked) -> None:
    await begin(asked)
    asked.writer.close()


async def stalled(asked: Asked) -> None:
    await begin(asked)
    await asked.client_has_left()


async def half_a_line(asked: Asked) -> None:
    await begin(asked, b'data: {"choices": [{"index": 0, "del')
    asked.reset()


async def half_a_line_and_an_orderly_end(asked: Asked) -> None:
    await begin(asked, b'data: {"choices": [{"index": 0, "del')
    await asked.end()


async def ended_without_done(asked: Asked) -> None:
    await begin(asked)
    await asked.end()


async def closed_where_nothing_else_marks_the_end(asked: Asked) -> None:
    await asked.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
    await asked.send(b"".join(BEGIN))
    asked.writer.close()


CUTS = {
    reset_after_five: "cut",
    closed_without_the_last_chunk: "cut",
    stalled: "timeout",
    half_a_line: "cut",
    half_a_line_and_an_orderly_end: "cut",
    ended_without_done: "cut",
    closed_where_nothing_else_marks_the_end: "cut",
}


@pytest.mark.parametrize("script", CUTS, ids=lambda script: script.__name__)
async def test_a_cut_stream_ends_with_one_error_event_and_no_made_up_end(script):
    async with (
        scripted_upstreams(ScriptedUpstream(script)) as upstreams,
        running_gateway(upstreams, idle_timeout_seconds=0.2) as gateway,
    ):
        text = await gateway.stream()
        assert text.startswith(b"".join(BEGIN).decode())
        *chunks, last = events_of(text)
        assert len(chunks) == len(BEGIN)
        assert set(last) == {"error"}
        assert last["error"]["code"] == ("replica_timeout" if script is stalled else "replica_failed")
        assert "[DONE]" not in text
        assert '"stop"' not in text
        assert gateway.outcomes("a") == {CUTS[script]: 1}
        metrics = (await gateway.client.get("/metrics")).text
        assert f'ullage_gateway_requests_total{{outcome="{CUTS[script]}",replica="a"}} 1.0' in metrics


@pytest.mark.parametrize("then", ["reset", "end", "stall"])
async def test_the_error_event_of_a_replica_is_passed_on_and_none_is_added(then):
    async def script(asked: Asked) -> None:
        await begin(asked, OWN_ERROR)
        if then == "reset":
            asked.reset()
        elif then == "end":
            await asked.end()
        else:
            await asked.client_has_left()

    async with (
        scripted_upstreams(ScriptedUpstream(script)) as upstreams,
        running_gateway(upstreams, idle_timeout_seconds=0.2) as gateway,
    ):
        assert await gateway.stream() == b"".join([*BEGIN, OWN_ERROR]).decode()
        assert gateway.outcomes("a") == {"failed": 1}


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        ({"type": "invalid_request_error", "code": None}, "refused"),  # a constraint that grew too complex
        ({"type": "invalid_request_error", "code": "of_another_server"}, "refused"),
        ({"type": "server_error", "code": "deadline_exceeded"}, "refused"),
        ({"type": "insufficient_quota", "code": "insufficient_quota"}, "refused"),
        ({"type": "requests", "code": "rate_limit_exceeded"}, "busy"),
        ({"type": "server_error", "code": None}, "failed"),
        ({"type": "server_error", "code": []}, "failed"),
    ],
)
async def test_only_an_error_that_is_the_replicas_own_counts_against_it(error, outcome):
    async def script(asked: Asked) -> None:
        await asked.stream(ROLE, b"data: " + json.dumps({"error": error}).encode() + b"\n\n")
        await asked.end()

    async with (
        scripted_upstreams(ScriptedUpstream(script)) as upstreams,
        running_gateway(upstreams, ejection_seconds=30.0) as gateway,
    ):
        for _ in range(3):
            await gateway.stream()
        assert gateway.outcomes("a") == {outcome: 3}
        assert await gateway.states() == {"a": "ejected" if outcome == "failed" else "up"}


async def test_a_reset_between_the_finish_reason_and_done_is_a_cut_too():
    async def script(asked: Asked) -> None:
        await begin(asked, STOP)
        asked.reset()

    async with scripted_upstreams(ScriptedUpstream(script)) as upstreams, running_gateway(upstreams) as gateway:
        text = await gateway.stream()
        assert text.startswith(b"".join([*BEGIN, STOP]).decode())
        assert "error" in events_of(text)[-1]
        assert "[DONE]" not in text
        assert gateway.outcomes("a") == {"cut": 1}


async def test_a_reset_after_done_takes_nothing_from_a_whole_answer():
    async def script(asked: Asked) -> None:
        await begin(asked, STOP, DONE)
        asked.reset()

    async with scripted_upstreams(ScriptedUpstream(script)) as upstreams, running_gateway(upstreams) as gateway:
        assert await gateway.stream() == b"".join([*BEGIN, STOP, DONE]).decode()
        assert gateway.outcomes("a") == {"ok": 1}


async def test_a_whole_stream_goes_through_byte_for_byte():
    sent = [ROLE, b": ping\n\n", b"event: x\r\ndata: {\r\ndata: }\r\n\r\n", 'data: {"a": "…"}\n\n'.encode(), STOP, DONE]

    async def script(asked: Asked) -> None:
        await asked.send(EVENT_STREAM)
        for byte in b"".join(sent):  # however the network cuts it
            await asked.chunk(bytes([byte]))
        await asked.end()

    async with scripted_upstreams(ScriptedUpstream(script)) as upstreams, running_gateway(upstreams) as gateway:
        response = await gateway.chat(stream=True)
        assert response.content == b"".join(sent)


async def test_each_event_arrives_before_the_next_is_made():
    turn = asyncio.Event()

    async def script(asked: Asked) -> None:
        await asked.send(EVENT_STREAM)
        for event in (*BEGIN, STOP, DONE):
            await asked.chunk(event)
            await turn.wait()
            turn.clear()
        await asked.end()

    async with scripted_upstreams(ScriptedUpstream(script)) as upstreams, running_gateway(upstreams) as gateway:
        seen = []
        body = {**CHAT, "stream": True}
        async with gateway.client.stream("POST", "/v1/chat/completions", json=body) as response:
            async for piece in response.aiter_raw():
                seen.append(piece)
                turn.set()
        assert seen == [*BEGIN, STOP, DONE]


async def test_before_the_first_byte_another_replica_is_tried():
    async def lost(asked: Asked) -> None:
        asked.reset()

    async def fine(asked: Asked) -> None:
        await asked.stream(*BEGIN, STOP, DONE)
        await asked.end()

    async with (
        scripted_upstreams(ScriptedUpstream(lost), ScriptedUpstream(fine)) as upstreams,
        running_gateway(upstreams) as gateway,
    ):
        for _ in range(4):
            assert (await gateway.stream()).endswith("data: [DONE]\n\n")
        assert gateway.outcomes("b") == {"ok": 4}
        assert gateway.outcomes("a")["unreachable"] >= 1
        assert upstreams[0].asked[0].body == upstreams[1].asked[0].body


@pytest.mark.parametrize(("kind", "status"), [("lost", 502), ("silent", 504)])
@pytest.mark.parametrize("stream", [True, False])
async def test_without_another_replica_the_answer_is_502_or_504(kind, status, stream):
    async def script(asked: Asked) -> None:
        if kind == "lost":
            asked.reset()
        else:
            await asked.client_has_left()

    timeouts = {"first_byte_timeout_seconds": 0.2, "answer_timeout_seconds": 0.2}
    async with (
        scripted_upstreams(ScriptedUpstream(script)) as upstreams,
        running_gateway(upstreams, **timeouts) as gateway,
    ):
        response = await gateway.chat(stream=stream)
        assert response.status_code == status
        assert set(response.json()) == {"error"}


async def test_a_request_whose_answer_is_late_is_not_repeated_elsewhere():
    async def silent(asked: Asked) -> None:
        await asked.client_has_left()

    async with (
        scripted_upstreams(ScriptedUpstream(silent), ScriptedUpstream(silent)) as upstreams,
        running_gateway(upstreams, answer_timeout_seconds=0.2) as gateway,
    ):
        assert (await gateway.chat()).status_code == 504
        assert sum(len(upstream.asked) for upstream in upstreams) == 1


async def test_a_body_that_is_no_stream_and_is_cut_is_seen_to_be_cut():
    async def script(asked: Asked) -> None:
        await asked.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
        asked.writer.close()

    async with scripted_upstreams(ScriptedUpstream(script)) as upstreams, running_gateway(upstreams) as gateway:
        with pytest.raises(httpx.RemoteProtocolError):
            await gateway.chat()
        assert gateway.outcomes("a") == {"cut": 1}


@pytest.mark.parametrize("begun", [True, False])
async def test_a_client_that_leaves_closes_the_upstream_at_once(begun):
    left = asyncio.Event()

    async def script(asked: Asked) -> None:
        if begun:
            await asked.stream(*BEGIN)
        await asked.client_has_left()
        left.set()

    async with scripted_upstreams(ScriptedUpstream(script)) as upstreams, running_gateway(upstreams) as gateway:
        told = asyncio.Event()

        async def ask() -> None:
            body = {**CHAT, "stream": True}
            async with gateway.client.stream("POST", "/v1/chat/completions", json=body) as response:
                async for _ in response.aiter_raw():
                    told.set()

        asking = asyncio.create_task(ask())
        await until(told.is_set if begun else lambda: upstreams[0].asked)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        async with asyncio.timeout(1):
            await left.wait()
        await until(lambda: gateway.outcomes("a") == {"abandoned": 1})
        assert gateway.gateway.in_work.num_requests == 0
        assert await gateway.states() == {"a": "up"}


async def test_of_a_body_nothing_is_held_any_more_when_its_answer_has_begun():
    release = asyncio.Event()

    async def script(asked: Asked) -> None:
        await asked.stream(ROLE)
        await release.wait()
        await asked.chunk(DONE)
        await asked.end()

    num_bytes = 1 << 20
    body = {**CHAT, "stream": True, "user": "x" * num_bytes}
    async with scripted_upstreams(ScriptedUpstream(script)) as upstreams, running_gateway(upstreams) as gateway:
        tracemalloc.start()
        try:
            async with gateway.client.stream("POST", "/v1/chat/completions", json=body) as response:
                pieces = response.aiter_raw()
                assert await anext(pieces) == ROLE
                held = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, client_request.__file__)])
                release.set()
                assert await anext(pieces) == DONE
        finally:
            tracemalloc.stop()
        assert len(upstreams[0].asked[0].body) > num_bytes
        assert sum(trace.size for trace in held.traces) < num_bytes / 10


async def test_an_event_larger_than_its_bound_ends_the_stream():
    async def script(asked: Asked) -> None:
        await asked.stream(ROLE, b"data: " + b"x" * 5000)
        await asked.client_has_left()

    async with (
        scripted_upstreams(ScriptedUpstream(script)) as upstreams,
        running_gateway(upstreams, max_event_bytes=4096) as gateway,
    ):
        assert json.loads((await gateway.stream()).split("data: ")[-1])["error"]["code"] == "replica_failed"


async def test_a_client_that_sent_more_than_its_request_is_seen_to_leave():
    left = asyncio.Event()

    async def script(asked: Asked) -> None:
        await asked.client_has_left()
        left.set()

    async with scripted_upstreams(ScriptedUpstream(script)) as upstreams, running_gateway(upstreams) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        post = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}"
        writer.write(post + b"GET /health/live HTTP/1.1\r\nhost: a\r\n\r\n")
        await until(lambda: upstreams[0].asked)
        writer.close()
        async with asyncio.timeout(2):
            await left.wait()
