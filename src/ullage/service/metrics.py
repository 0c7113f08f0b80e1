"""GET /metrics: what Prometheus reads. Names are vLLM's, with ``ullage_`` before them, where the meaning is the same.

Gauges and totals are asked of the engine at each reading, so they are right at once whatever happened since. Times are
noted once for each request that ended, whether or not its reader was still there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ullage.engine.client import EngineClient, EngineState, FinishReason, GenerationOutput
from ullage.engine.token_gaps import GAP_SECONDS
from ullage.protocol.errors import ERROR_TABLE
from ullage.service.probe import Prober
from ullage.service.request_record import RequestRecord

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000)
ERROR_CODES = frozenset(row.code or row.type for row in ERROR_TABLE.values())
OTHER_CODE = "other"
STATES: tuple[EngineState, ...] = ("starting", "ready", "stalled", "restarting", "failed", "stopped")


class Metrics:
    """Of one engine's service. Belongs to the event loop."""

    def __init__(self, engine: EngineClient) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(EngineCollector(engine))
        self._queue = self._histogram("request_queue_time_seconds", "From acceptance until it first ran", SECONDS)
        self._first = self._histogram("time_to_first_token_seconds", "From acceptance to the first token", SECONDS)
        self._token = self._histogram(
            "request_time_per_output_token_seconds", "Mean gap between the tokens of a request", TOKEN_SECONDS
        )
        self._whole = self._histogram("e2e_request_latency_seconds", "From acceptance to the last token", SECONDS)
        self._prompt = self._histogram("request_prompt_tokens", "Prompt tokens of a request", TOKENS)
        self._output = self._histogram("request_generation_tokens", "Tokens generated for a request", TOKENS)
        self._ended = self._counter("request_success", "Accepted requests that ended, by why", "finished_reason")
        self._refused = self._counter("refusals", "HTTP requests of which nothing was accepted, by the error", "code")
        self._answers = self._counter("http_answers", "HTTP answers; 499: the client left before", "status")
        for reason in get_args(FinishReason):
            self._ended.labels(reason)

    def add(self, collector: Collector) -> None:
        """What else is read."""
        self._registry.register(collector)

    def observe(self, last: GenerationOutput) -> None:
        """:param last: a request's last output"""
        self._ended.labels(last.finish_reason).inc()
        self._prompt.observe(last.num_prompt_tokens)
        self._output.observe(last.num_output_tokens)
        times = last.times
        if times is None:
            return
        self._whole.observe(times.finished_at - times.arrived_at)
        left_queue_at = times.finished_at if times.started_at is None else times.started_at
        self._queue.observe(left_queue_at - times.arrived_at)
        if times.first_token_at is not None:
            self._first.observe(times.first_token_at - times.arrived_at)
            if last.num_output_tokens > 1:
                self._token.observe((times.finished_at - times.first_token_at) / (last.num_output_tokens - 1))

    def observe_answer(self, record: RequestRecord) -> None:
        """:param record: of an HTTP request that is complete"""
        self._answers.labels(record.status).inc()
        if record.status >= 400 and not record.asked and record.error_code is not None:
            self.observe_refusal(record.error_code)

    def observe_refusal(self, code: str) -> None:
        """:param code: of the error; one of a fixed set"""
        self._refused.labels(code if code in ERROR_CODES else OTHER_CODE).inc()

    def text(self) -> bytes:
        """All of them, in Prometheus's text format."""
        return generate_latest(self._registry)

    def _counter(self, name: str, what: str, label: str) -> Counter:
        return Counter(f"ullage_{name}", what, [label], registry=self._registry)

    def _histogram(self, name: str, what: str, buckets: Iterable[float]) -> Histogram:
        return Histogram(f"ullage_{name}", what, buckets=tuple(buckets), registry=self._registry)


class EngineCollector(Collector):
    """What the engine says of itself when it is asked."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        status, ledger = self._engine.status(), self._engine.ledger()
        yield _gauge("num_requests_running", "Requests that hold blocks", status.num_running)
        yield _gauge("num_requests_waiting", "Requests in the queue", status.num_waiting)
        used = status.num_blocks - status.num_free_blocks
        share = used / status.num_blocks if status.num_blocks else 0.0
        yield _gauge("kv_cache_usage_perc", "Share of the KV blocks that requests hold, 0 to 1", share)
        yield _counter("prompt_tokens", "Prompt tokens computed", status.num_prompt_tokens)
        yield _counter("generation_tokens", "Tokens generated", status.num_generated_tokens)
        yield _counter("prefix_cache_hits", "Tokens found in the prefix cache", status.num_prefix_hit_tokens)
        yield _counter("num_preemptions", "Times a request gave up its blocks", status.num_preemptions)
        yield _counter("engine_steps", "Steps", status.num_steps)
        yield _counter("engine_restarts", "Times the engine's process was started anew", status.num_restarts)
        yield _by("aborts", "Requests that ended early", "reason", status.num_aborts)
        yield _by("queue_refusals", "Requests that found the queue full", "bound", status.num_refusals)
        states: dict[str, float] = {state: float(state == status.state) for state in STATES}
        yield _gauges("engine_state", "1 for the state that the engine is in", "state", states)
        promised = status.num_promised_blocks
        blocks = {"held": used, "promised": promised, "free": status.num_free_blocks - promised}
        yield _gauges("kv_blocks", "Blocks of the KV pool", "state", blocks)
        held = {"reserved": ledger.kv_reserved_bytes, "used": ledger.kv_used_bytes, "cached": ledger.kv_cached_bytes}
        yield _gauges("kv_bytes", "Bytes of the KV pool", "state", held)
        yield from self._figures()
        accounts = ledger.accounts
        planned = {name: account.planned_bytes for name, account in accounts.items()}
        yield _gauges("ledger_planned_bytes", "What an account may hold", "account", planned)
        taken = {name: account.allocated_bytes for name, account in accounts.items()}
        yield _gauges("ledger_allocated_bytes", "What an account holds", "account", taken)

    def _figures(self) -> Iterator[Metric]:
        figures = self._engine.figures()
        yield _by("step_stage_seconds", "Time of steps, by the kind of operator", "stage", figures.stage_seconds)
        if figures.token_gap_counts:
            bounds = [*map(floatToGoString, GAP_SECONDS), "+Inf"]
            buckets = list(zip(bounds, accumulate(figures.token_gap_counts), strict=True))
            yield HistogramMetricFamily(
                "ullage_inter_token_latency_seconds",
                "From one token of a request to its next",
                buckets=buckets,
                sum_value=figures.token_gap_seconds,
            )


class ProbeCollector(Collector):
    """How the engine answered the question with the known answer."""

    def __init__(self, prober: Prober) -> None:
        self._prober = prober

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        counts = self._prober.num_answers
        yield _by("known_answer_probes", "Questions with a known answer, by what came of them", "result", counts)


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(f"ullage_{name}", what, value=value)


def _counter(name: str, what: str, value: float) -> Metric:
    return CounterMetricFamily(f"ullage_{name}", what, value=value)


def _gauges(name: str, what: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"ullage_{name}", what, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _by(name: str, what: str, label: str, counts: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(f"ullage_{name}", what, labels=[label])
    for key, count in counts.items():
        family.add_metric([key], count)
    return family
