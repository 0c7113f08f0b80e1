"""Which phases a request went through, and what of the settings can't be honoured."""

from __future__ import annotations

import sys

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ullage.base.errors import ConfigError
from ullage.engine.client import GenerationOutput, GenerationRequest, RequestTimes
from ullage.engine.sampling_params import SamplingParams
from ullage.service.config import ServiceConfig
from ullage.service.request_record import RequestRecord
from ullage.service.tracing import Tracing, check_tracing, make_tracing, phases

ENDPOINT = "http://127.0.0.1:4318"


def test_each_phase_begins_where_the_last_one_ended() -> None:
    assert phases(RequestTimes(1.0, 2.0, 4.0, 8.0)) == [
        ("queue", 1.0, 2.0),
        ("prefill", 2.0, 4.0),
        ("decode", 4.0, 8.0),
    ]


def test_a_request_that_ended_early_has_only_the_phases_it_saw() -> None:
    assert phases(RequestTimes(1.0, None, None, 8.0)) == [("queue", 1.0, 8.0)]
    assert phases(RequestTimes(1.0, 2.0, None, 8.0)) == [("queue", 1.0, 2.0), ("prefill", 2.0, 8.0)]


def test_without_an_address_there_are_no_traces_and_no_library_is_needed() -> None:
    assert make_tracing(ServiceConfig(), "tiny") is None


@pytest.mark.parametrize("endpoint", ["localhost:4318", "grpc://a", ""])
def test_an_address_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="otlp_endpoint is"):
        check_tracing(ServiceConfig(otlp_endpoint=endpoint))


def test_a_missing_library_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError) as told:
        check_tracing(ServiceConfig(otlp_endpoint=ENDPOINT))
    assert told.value.hint == "pip install 'ullage[tracing]'"


def test_headers_that_are_none_are_refused_without_being_shown() -> None:
    with pytest.raises(ConfigError) as told:
        check_tracing(ServiceConfig(otlp_endpoint=ENDPOINT, otlp_headers="s3cret"))
    assert "s3cret" not in str(told.value)


def test_choices_are_told_by_their_index_whichever_ended_first() -> None:
    spans = InMemorySpanExporter()
    tracing = Tracing(SimpleSpanProcessor(spans), "tiny")
    record = RequestRecord("id", "POST", "/v1/completions", "", tracing.observe)
    for _ in range(2):
        record.accepted(GenerationRequest((1, 2), SamplingParams(max_tokens=9)))
    times = RequestTimes(1.0, 2.0, 4.0, 8.0)
    record.ended(GenerationOutput("", (), (), 2, 0, 3, finish_reason="stop", times=times), 1)
    record.ended(GenerationOutput("", (), (), 2, 0, 9, finish_reason="length", times=times), 0)
    record.answered()
    attributes = [dict(span.attributes or {}) for span in spans.get_finished_spans()]
    decodes = [a for a in attributes if "ullage.preemptions" in a]
    tokens = {a["ullage.choice"]: a["gen_ai.usage.output_tokens"] for a in decodes}
    assert tokens == {0: 9, 1: 3}
    (reasons,) = [a["gen_ai.response.finish_reasons"] for a in attributes if "gen_ai.response.finish_reasons" in a]
    assert reasons == ("length", "stop")
