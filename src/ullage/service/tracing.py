"""Traces of requests by OpenTelemetry: a span for each, and in it one for its time in the queue, prefill and decode.

Spans are made when a request is complete, from the times that were noted anyway; while it runs nothing is done for
them. Names and attributes are those of the semantic conventions for HTTP servers and generative AI. The library is an
extra: it is imported only where an address to send to is configured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ullage import __version__
from ullage.base.errors import ConfigError
from ullage.engine.client import GenerationOutput, RequestTimes
from ullage.service.config import ServiceConfig
from ullage.service.request_record import CLIENT_LEFT, RequestRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, Tracer

OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}
"""Paths that are traced, and what the conventions call them. Others would only be noise."""
MAX_WAITING_SPANS = 2048
"""That wait to be sent; one more is dropped."""


class Tracing:
    """Sends a trace of each request that is complete.

    :param processor: takes the spans
    :param model: what the server calls its model
    """

    def __init__(self, processor: SpanProcessor, model: str) -> None:
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
        from opentelemetry.sdk.trace import TracerProvider

        resource = Resource.create({SERVICE_NAME: "ullage", SERVICE_VERSION: __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer: Tracer = self._provider.get_tracer("ullage", __version__)
        self._model = model

    def observe(self, record: RequestRecord) -> None:
        """:param record: complete"""
        operation = OPERATIONS.get(record.path)
        if operation is None:
            return
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        wall_time = _wall_clock()
        parent = TraceContextTextMapPropagator().extract({"traceparent": record.traceparent})
        span = self._tracer.start_span(
            f"{operation} {self._model}",
            context=parent,
            kind=SpanKind.SERVER,
            attributes=self._attributes(record, operation),
            start_time=wall_time(record.began_at),
        )
        if record.status >= 500 or "error" in record.finish_reasons:
            span.set_status(StatusCode.ERROR, record.error_code)
        inner = set_span_in_context(span)
        ended_at = record.ended_at
        for choice, last in enumerate(record.ends_in_order):
            if last.times is not None:
                ended_at = max(ended_at, last.times.finished_at)
                for name, begin, end in phases(last.times):
                    child = self._tracer.start_span(
                        name, context=inner, attributes={"ullage.choice": choice}, start_time=wall_time(begin)
                    )
                    _describe(child, name, last)
                    child.end(wall_time(end))
        span.end(wall_time(ended_at))

    def _attributes(self, record: RequestRecord, operation: str) -> Mapping[str, Any]:
        """No prompt and no answer."""
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "ullage",
            "gen_ai.request.model": self._model,
            "http.request.method": record.method,
            "url.path": record.path,
            "http.response.status_code": record.status,
            "ullage.request_id": record.request_id,
        }
        if record.asked:
            sampling = record.asked[0].sampling
            attributes |= {
                "gen_ai.response.model": self._model,
                "gen_ai.request.max_tokens": sampling.max_tokens,
                "gen_ai.request.temperature": sampling.temperature,
                "gen_ai.request.top_p": sampling.top_p,
                "gen_ai.request.choice.count": len(record.asked),
                "gen_ai.usage.input_tokens": record.num_prompt_tokens,
                "gen_ai.usage.output_tokens": record.num_output_tokens,
                "gen_ai.usage.cache_read.input_tokens": record.num_cached_tokens,
                "gen_ai.response.finish_reasons": record.finish_reasons,
            }
        if record.error_code is not None:
            attributes["error.type"] = record.error_code
        elif record.status == CLIENT_LEFT:
            attributes["error.type"] = str(CLIENT_LEFT)
        return attributes

    def close(self) -> None:
        """Sends what waits. Blocks, for some seconds at most."""
        self._provider.shutdown()


def phases(times: RequestTimes) -> list[tuple[str, float, float]]:
    """(name, begin, end) of what a request went through, by the engine's clock."""
    if times.started_at is None:
        return [("queue", times.arrived_at, times.finished_at)]
    found = [("queue", times.arrived_at, times.started_at)]
    first_token_at = times.finished_at if times.first_token_at is None else times.first_token_at
    found.append(("prefill", times.started_at, first_token_at))
    if times.first_token_at is not None:
        found.append(("decode", times.first_token_at, times.finished_at))
    return found


def _describe(span: Span, phase: str, last: GenerationOutput) -> None:
    if phase == "prefill":
        span.set_attribute("gen_ai.usage.input_tokens", last.num_prompt_tokens)
        span.set_attribute("gen_ai.usage.cache_read.input_tokens", last.num_cached_tokens)
    elif phase == "decode":
        span.set_attribute("gen_ai.usage.output_tokens", last.num_output_tokens)
        span.set_attribute("ullage.preemptions", 0 if last.times is None else last.times.num_preemptions)


def _wall_clock() -> Callable[[float], int]:
    """Makes nanoseconds since 1970 of seconds of the monotonic clock."""
    offset = time.time_ns() - time.monotonic_ns()
    return lambda seconds: offset + int(seconds * 1e9)


def make_tracing(config: ServiceConfig, model: str) -> Tracing | None:
    """None: no traces are asked for.

    :raises ConfigError: the library is missing, or a setting can't be honoured
    """
    if config.otlp_endpoint is None:
        return None
    exporter = check_tracing(config)
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return Tracing(BatchSpanProcessor(exporter, max_queue_size=MAX_WAITING_SPANS), model)


def check_tracing(config: ServiceConfig) -> SpanExporter:
    """What would send the spans of a server with these settings.

    :raises ConfigError: the library is missing, or a setting can't be honoured
    """
    endpoint = config.otlp_endpoint or ""
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"otlp_endpoint is {endpoint!r}", hint="it is an address like http://127.0.0.1:4318")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigError("otlp_endpoint needs a library", hint="pip install 'ullage[tracing]'") from error
    headers = dict(_header(part) for part in config.otlp_headers.split(",")) if config.otlp_headers else {}
    exporter: SpanExporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", headers=headers)
    return exporter


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (equals and name.strip()):
        raise ConfigError("otlp_headers has a part that isn't name=value")  # and isn't shown: it is a secret
    return name.strip().lower(), value.strip()
