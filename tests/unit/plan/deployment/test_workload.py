from __future__ import annotations

import json
import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.base.errors import ConfigError
from ullage.plan.deployment import PlanOptions, load_model, plan_deployment
from ullage.plan.deployment.request_log import read_request_log
from ullage.plan.deployment.workload import (
    RequestLength,
    Workload,
    quantiles,
    rate_of,
    requests_at_once,
    rounded_up,
    running_demand,
)


def test_percentiles_are_met_by_the_lengths_made_of_them():
    lengths = quantiles("p50=500,p90=2000,p99=6000", "prompt_lengths")
    assert sum(length <= 500 for length in lengths) / len(lengths) == pytest.approx(0.5, abs=0.02)
    assert sum(length <= 2000 for length in lengths) / len(lengths) == pytest.approx(0.9, abs=0.02)
    assert (min(lengths), max(lengths)) == (9, 6000)
    assert list(lengths) == sorted(lengths)


def test_one_number_is_the_length_of_all():
    assert quantiles("700", "prompt_lengths") == (700,)


@pytest.mark.parametrize(
    "text",
    ["", "p50", "p50=", "p50=0", "p50=-1", "p50=nan", "p0=5", "p101=5", "pxx=5", "p90=100,p50=50", "p50=100,p90=50",
     "p50=9" + "9" * 30, "1e400", "p50=5,p50=6"],
)  # fmt: skip
def test_what_is_no_percentile_is_refused_by_name(text):
    with pytest.raises(ConfigError, match="prompt_lengths: "):
        quantiles(text, "prompt_lengths")


@pytest.mark.parametrize(
    ("text", "rate"), [("2", 2.0), ("2/s", 2.0), ("90/min", 1.5), ("3600/h", 1.0), (" 6 / minutes", 0.1)]
)
def test_rates_are_read_in_their_units(text, rate):
    assert rate_of(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["", "/s", "0/s", "-1/s", "nan", "inf/s", "2/day", "fast"])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(ConfigError, match="arrival_rate"):
        rate_of(text)


def test_the_context_covers_the_share_asked_for():
    load = Workload(
        (RequestLength(90, 10, 0.9), RequestLength(900, 100, 0.09), RequestLength(9000, 1000, 0.01)), None, ""
    )
    assert [load.context(share) for share in (0.5, 0.9, 0.95, 0.99, 1.0)] == [100, 100, 1000, 1000, 10_000]
    assert load.share_beyond(1000) == pytest.approx(0.01)


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), min_size=1, max_size=30),
    st.floats(0.01, 1.0),
)
def test_the_context_is_the_smallest_that_covers(pairs, share):
    load = Workload(tuple(RequestLength(p, o, 1 / len(pairs)) for p, o in pairs), None, "")
    context = load.context(share)
    assert 1 - load.share_beyond(context) >= share - 1e-6
    assert 1 - load.share_beyond(context - 1) < share + 1e-6


def test_a_running_request_holds_its_prompt_and_half_its_output_on_average():
    demand = running_demand([RequestLength(1024, 1024)], lambda tokens: tokens)
    assert demand.mean_bytes == pytest.approx(1024 + 512, rel=0.03)
    assert demand.deviation_bytes == pytest.approx(1024 / math.sqrt(12), rel=0.1)


def test_long_outputs_are_met_more_often():
    demand = running_demand([RequestLength(1, 16, 0.5), RequestLength(1, 1600, 0.5)], lambda tokens: tokens)
    assert demand.mean_bytes == pytest.approx((16 * 9 + 1600 * 801) / 1616, rel=0.05)


def test_many_requests_need_less_than_each_at_its_longest():
    demand = running_demand([RequestLength(100, 100)], lambda tokens: tokens)
    assert demand.bytes_99(1) > 200
    assert 100 * 150 < demand.bytes_99(100) < 100 * 165


@pytest.mark.parametrize("tokens", [1, 31, 32, 33, 63, 64, 65, 1000, 4097, 10**9])
def test_rounding_goes_up_by_a_32nd_at_most(tokens):
    assert tokens <= rounded_up(tokens) <= tokens * (1 + 1 / 31)


def test_requests_at_once_are_arrivals_times_seconds():
    assert requests_at_once(2.0, lambda count: 3.0, 100) == 6
    assert requests_at_once(0.1, lambda count: 1.0, 100) == 1
    assert requests_at_once(1.0, lambda count: 1 + 0.5 * count, 100) == 2
    assert requests_at_once(1.0, lambda count: 1 + 2.0 * count, 100) is None
    assert requests_at_once(1.0, lambda count: math.inf, 100) is None


# ---- Logs ----


CSV = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,100,20\n2023-11-16 18:17:05.9799600,400,40\n"
)
LINES = '{"created": 10, "usage": {"prompt_tokens": 100, "completion_tokens": 20}}\n\n' \
    '{"created": 12, "usage": {"prompt_tokens": 400, "completion_tokens": 40}}\n'  # fmt: skip


@pytest.mark.parametrize("text", [CSV, LINES, "\ufeff" + CSV], ids=["csv", "json lines", "byte order mark"])
def test_logs_say_lengths_and_arrivals(tmp_path, text):
    path = tmp_path / "log"
    path.write_text(text, encoding="utf-8")
    load = read_request_log(path)
    assert load.arrivals_per_second == pytest.approx(0.5)
    assert sorted((length.prompt_tokens, length.output_tokens, length.share) for length in load.lengths) == [
        (100, 20, 0.5),
        (400, 40, 0.5),
    ]
    assert read_request_log(path, 7.0).arrivals_per_second == 7.0


def test_times_may_have_a_zone_and_begin_at_zero(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(
        "prompt_tokens,output_tokens,timestamp\n1,1,2024-05-01T10:00:00.123456789+02:00\n1,1,2024-05-01T08:00:04Z\n"
    )
    assert read_request_log(path).arrivals_per_second == pytest.approx(1 / 3.876544)
    path.write_text("prompt_tokens,output_tokens,timestamp\n1,1,5\n1,1,0\n")
    assert read_request_log(path).arrivals_per_second == pytest.approx(0.2)


def test_a_long_log_needs_few_lengths_and_keeps_its_longest_exactly(tmp_path):
    path = tmp_path / "log.csv"
    rows = "".join(f"{1 + i * 7919 % 6007},{1 + i * 104729 % 997}\n" for i in range(20_000))
    path.write_text("input_tokens,output_tokens\n" + rows)
    load = read_request_log(path)
    assert len(load.lengths) < 15_000
    assert sum(length.share for length in load.lengths) == pytest.approx(1)
    assert load.context(1.0) == max(2 + i * 7919 % 6007 + i * 104729 % 997 for i in range(20_000))
    assert load.arrivals_per_second is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no request"),
        ("prompt_tokens,output_tokens\n", "holds no request"),
        ("a,b\n1,2\n", "line 2: none of prompt_tokens"),
        ("prompt_tokens,output_tokens\n1\n", "line 2: 1 columns, but 2 in the heading"),
        ("prompt_tokens,output_tokens\n5,-2\n", "line 2: output_tokens is no number of tokens: '-2'"),
        ("prompt_tokens,output_tokens\n5,1e3\n", "line 2: output_tokens is no number"),
        ("prompt_tokens,output_tokens,time\n5,5,noon\n", "line 2: time is no time"),
        ("prompt_tokens,output_tokens,time\n5,5,nan\n", "line 2: time is no time"),
        ('{"prompt_tokens": 5, "output_tokens": 5}\n{"prompt_tokens"\n', "line 2: no JSON object"),
        ('{"prompt_tokens": true, "output_tokens": 5}\n', "line 1: prompt_tokens is no number"),
        ("{" + "[" * 100_000, "line 1: no JSON object"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path, text, message):
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_request_log(path)
    assert message in error.value.message


def test_what_is_no_text_file_is_refused_without_waiting(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00" * 100)
    os.mkfifo(tmp_path / "pipe")
    for name, message in (("binary", "not text"), ("pipe", "no such file"), ("", "no such file"), ("gone", "no such")):
        with pytest.raises(ConfigError, match=message):
            read_request_log(tmp_path / name)


# ---- In a plan ----


def planned(**options: object):
    return plan_deployment(load_model("Llama-3.1-8B"), PlanOptions(device="A100 80GB", **options))


PERCENTILES = {"prompt_lengths": "p50=500,p90=2000,p99=6000", "output_lengths": "p50=200,p99=800"}


def test_a_workload_says_context_concurrency_and_bytes():
    plan = planned(**PERCENTILES, arrival_rate="2/s")
    assert plan.fits
    assert plan.context == 6800
    assert plan.work.refused_share == 0
    assert plan.concurrency == math.ceil(2 * plan.work.seconds_in_system)
    full = plan.sizing.demand(plan.concurrency, plan.context)
    assert plan.sizing.demand(1, plan.context) <= plan.kv_needed_bytes < full


def test_a_context_that_covers_less_refuses_the_rest():
    plan = planned(**PERCENTILES, cover=0.95)
    assert plan.context < 6800
    assert 0 < plan.work.refused_share <= 0.05


def test_arrivals_that_cannot_be_kept_up_with_do_not_fit():
    plan = planned(**PERCENTILES, arrival_rate="1000/s")
    assert not plan.fits
    assert "faster than they can be answered" in plan.reasons[-1]


def test_a_log_is_planned_for(tmp_path):
    path = tmp_path / "log"
    path.write_text(CSV)
    assert planned(request_log=str(path)).context == 440


@pytest.mark.parametrize(
    "options",
    [
        {"prompt_lengths": "500"},
        {"output_lengths": "500"},
        {"arrival_rate": "2/s"},
        {"cover": 0.9},
        {**PERCENTILES, "cover": 0.0},
        {**PERCENTILES, "cover": math.nan},
        {**PERCENTILES, "request_log": "x"},
    ],
)
def test_options_that_do_not_go_together_are_refused(options):
    with pytest.raises(ConfigError):
        PlanOptions(**options)


def test_the_documents_speak_of_the_work():
    from ullage.plan.reports.as_json import plan_json
    from ullage.plan.reports.documents import plan_html, plan_markdown

    plan = planned(**PERCENTILES, arrival_rate="2/s")
    assert json.loads(json.dumps(plan_json(plan)))["workload"]["arrivals_per_second"] == 2.0
    assert "2 a second x" in plan_markdown(plan)
    assert "<h2>The work</h2>" in plan_html(plan)
