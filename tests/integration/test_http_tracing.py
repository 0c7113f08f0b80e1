"""Traces of real requests, kept in memory, and sent to a collector that a test plays."""

from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from tests.http_server import RunningServer, running_server, until
from tests.integration.test_http_embedded import make_engine

from ullage.service.config import ServiceConfig
from ullage.service.tracing import Tracing

TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
BODY = {"model": "tiny", "prompt": "hello", "max_tokens": 5, "ignore_eos": True, "temperature": 0.5}

Traced = tuple[RunningServer, httpx.AsyncClient, InMemorySpanExporter]


@asynccontextmanager
async def traced(step_seconds: float = 0.0) -> AsyncIterator[Traced]:
    spans = InMemorySpanExporter()
    async with (
        running_server(make_engine(step_seconds=step_seconds)) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        server.server._service.tracing = Tracing(SimpleSpanProcessor(spans), "tiny")
        yield server, client, spans


def by_name(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


async def test_a_request_is_one_span_with_its_phases_below_the_clients_own() -> None:
    async with traced() as (_, client, exporter):
        answer = await client.post("/v1/completions", json=BODY, headers={**PARENT, "x-request-id": "mine"})
        await client.get("/metrics")
    spans = by_name(exporter)
    assert spans.keys() == {"text_completion tiny", "queue", "prefill", "decode"}
    whole = spans.pop("text_completion tiny")
    assert (whole.kind, whole.status.status_code) == (SpanKind.SERVER, StatusCode.UNSET)
    assert f"{whole.context.trace_id:032x}" == TRACE_ID
    assert whole.parent is not None
    assert f"{whole.parent.span_id:016x}" == PARENT_ID
    assert whole.attributes is not None
    usage = answer.json()["usage"]
    assert dict(whole.attributes) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "ullage",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.choice.count": 1,
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.response.finish_reasons": ("length",),
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "url.path": "/v1/completions",
        "ullage.request_id": "mine",
    }
    last_end = whole.start_time
    for name in ("queue", "prefill", "decode"):
        span = spans[name]
        assert span.parent is not None
        assert span.parent.span_id == whole.context.span_id
        assert last_end is not None
        assert span.start_time is not None
        assert span.end_time is not None
        assert last_end <= span.start_time <= span.end_time
        last_end = span.end_time
    assert whole.end_time is not None
    assert last_end <= whole.end_time


@pytest.mark.parametrize("given", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "ff" * 40])
async def test_without_a_valid_parent_a_trace_of_its_own_begins(given: str) -> None:
    async with traced() as (_, client, exporter):
        await client.post("/v1/completions", json=BODY, headers={"traceparent": given} if given else {})
    whole = by_name(exporter)["text_completion tiny"]
    assert whole.parent is None


async def test_a_parent_that_is_not_sampled_is_followed() -> None:
    async with traced() as (_, client, exporter):
        await client.post("/v1/completions", json=BODY, headers={"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-00"})
    assert exporter.get_finished_spans() == ()


async def test_a_client_that_leaves_and_a_refusal_are_told() -> None:
    async with traced(step_seconds=0.01) as (server, client, exporter):
        asking = asyncio.create_task(client.post("/v1/completions", json={**BODY, "max_tokens": 100}))
        await until(lambda: server.server._service.engine.status().num_running == 1)
        asking.cancel()
        await until(lambda: exporter.get_finished_spans())
        left = by_name(exporter)["text_completion tiny"]
        exporter.clear()
        await client.post("/v1/completions", json={**BODY, "prompt": "x" * 400})
        refused = by_name(exporter)["text_completion tiny"]
    assert left.attributes is not None
    assert left.attributes["gen_ai.response.finish_reasons"] == ("abort",)
    assert left.attributes["error.type"] == "499"
    assert refused.attributes is not None
    assert refused.attributes["error.type"] == "context_length_exceeded"
    assert refused.attributes["http.response.status_code"] == 400
    assert "gen_ai.usage.input_tokens" not in refused.attributes


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, str | None, bytes]]]]:
    """Its address, and (path, authorization, body) of each request."""
    got: list[tuple[str, str | None, bytes]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append((self.path, self.headers["authorization"], body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", got
        server.shutdown()
        thread.join()


async def test_spans_reach_a_collector_when_the_server_stops_at_the_latest(
    collector: tuple[str, list[tuple[str, str | None, bytes]]],
) -> None:
    address, got = collector
    config = ServiceConfig(port=0, otlp_endpoint=address, otlp_headers="authorization=Bearer s3cret")
    async with running_server(make_engine(), config=config) as server, httpx.AsyncClient() as client:
        await client.post(f"{server.url}/v1/completions", json=BODY)
    ((path, authorization, body),) = got
    assert (path, authorization) == ("/v1/traces", "Bearer s3cret")
    assert b"text_completion org/tiny" in body
    assert b"hello" not in body
