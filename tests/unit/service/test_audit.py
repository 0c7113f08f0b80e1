"""What the audit log is told of a request."""

from __future__ import annotations

import gc
import tracemalloc
from datetime import UTC, datetime

import pytest
from tests.scripted_engine import scripted_model

from ullage.engine.client import GenerationOutput, GenerationRequest, RequestTimes
from ullage.engine.sampling_params import SamplingParams
from ullage.service.audit import Auditor, audit_line
from ullage.service.request_record import RequestRecord

ENDED_AT = datetime(2030, 1, 2, 3, 4, 5, 678900, tzinfo=UTC)


def a_record(path="/v1/completions"):
    record = RequestRecord("id", "POST", path, "", lambda _: None)
    record.began_at, record.ended_at = 10.0, 12.5
    return record


def accept(record, *prompts):
    for prompt in prompts:
        record.accepted(GenerationRequest(prompt, SamplingParams(max_tokens=9)))


def an_end(num_output, num_cached=0, *, num_prompt=3, started_at=10.5, reason="stop"):
    times = RequestTimes(10.25, started_at, None if started_at is None else started_at + 0.5, 12.0)
    return GenerationOutput("", (), (), num_prompt, num_cached, num_output, finish_reason=reason, times=times)


def test_a_prompt_counts_once_for_all_its_choices_in_whatever_order_they_end():
    record = a_record()
    one, two = (1, 2, 3), (4, 5, 6)
    accept(record, one, one, two, two)
    for index, num_output, num_cached in ((3, 40, 2), (1, 20, 3), (0, 10, 1), (2, 30, 2)):
        record.ended(an_end(num_output, num_cached, reason="stop" if index else "length"), index)
    line = audit_line(record, ENDED_AT)
    assert (line["prompt_tokens"], line["cached_tokens"], line["generated_tokens"]) == (6, 3, 100)
    assert line["finish_reasons"] == ["length", "stop", "stop", "stop"]
    assert (line["queue_seconds"], line["first_token_seconds"], line["total_seconds"]) == (0.25, 0.75, 2.5)


def test_a_request_that_never_ran_used_nothing():
    record = a_record()
    accept(record, (1, 2, 3))
    record.ended(an_end(0, started_at=None, reason="abort"), 0)
    line = audit_line(record, ENDED_AT)
    assert (line["prompt_tokens"], line["generated_tokens"], line["queue_seconds"]) == (0, 0, None)


def test_the_time_is_rfc_3339_in_utc_and_a_path_is_cut():
    line = audit_line(a_record("/" + "x" * 5000), ENDED_AT)
    assert line["time"] == "2030-01-02T03:04:05.678Z"
    assert len(line["path"]) == 200
    assert "prompt_tokens" not in line


class StandingLog:
    """Keeps all that it is told, as one that can't be written."""

    def __init__(self):
        self.queue = []
        self.num_bytes = 0

    def write(self, make_line, num_bytes):
        self.queue.append(make_line)
        self.num_bytes += num_bytes


def note_one(auditor, number, *, num_choices, num_tokens):
    record = a_record()
    record.request_id, record.client, record.model = f"req-{number:032x}", "127.0.0.1", f"model-{number}"
    record.keeps_texts = auditor.with_texts
    prompt = tuple(1000 * number + place for place in range(1000, 1000 + num_tokens))
    accept(record, *[prompt] * num_choices)
    for index in range(num_choices):
        record.add_text("\N{GRINNING FACE}" * num_tokens, index)
        record.ended(an_end(num_tokens), index)
    auditor.note(record)


@pytest.mark.parametrize("num_choices", [1, 8])
@pytest.mark.parametrize("num_tokens", [1, 5000])
@pytest.mark.parametrize("with_texts", [False, True])
def test_what_waits_to_be_written_holds_no_more_memory_than_the_log_is_told(with_texts, num_tokens, num_choices):
    log = StandingLog()
    auditor = Auditor(log, scripted_model(), is_required=False, with_texts=with_texts)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(20):
            note_one(auditor, number, num_choices=num_choices, num_tokens=num_tokens)
        gc.collect()
        num_held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(log.queue) == 20
    assert num_held_bytes <= log.num_bytes
    if not with_texts:
        assert log.num_bytes < 20 * 4096
    line = log.queue[-1]()
    assert line["model"] == "model-19"
    assert [len(answer) for answer in line.get("answers", ())] == [num_tokens] * num_choices * with_texts
