"""Servers beside each other: what is made of the generator's report, and of servers that don't start."""

from __future__ import annotations

import json
import sys

import pytest

from ullage.base.errors import EngineError
from ullage.ops.bench import http
from ullage.ops.bench.report import benchmarks_page
from ullage.ops.bench.result import write_result
from ullage.ops.bench.run import RESULT_FORMAT

REPORT = {
    "benchmarks": [
        {
            "duration": 4.0,
            "metrics": {
                "request_totals": {"successful": 12},
                "prompt_token_count": {"successful": {"total_sum": 12 * 256.0}},
                "output_token_count": {"successful": {"total_sum": 12 * 128.0}},
                "time_to_first_token_ms": {"successful": {"median": 20.0, "percentiles": {"p95": 40.0}}},
                "inter_token_latency_ms": {"successful": {"median": 3.0, "percentiles": {"p95": 5.0}}},
            },
        }
    ]
}
GENERATOR = """#!{python}
import sys
output = sys.argv[sys.argv.index("--output") + 1]
open(output.partition("path=")[2], "w").write({report!r})
"""


def generator(folder, report):
    path = folder / "guidellm"
    path.write_text(GENERATOR.format(python=sys.executable, report=json.dumps(report)))
    path.chmod(0o700)
    return path


def test_a_report_becomes_a_run(tmp_path):
    run = http.load(generator(tmp_path, REPORT), "http://127.0.0.1:1", 1, tmp_path, tmp_path)
    assert (run["num_requests"], run["output_tokens_per_second"]) == (12, 12 * 128 / 4.0)
    assert run["first_token_ms"] == {"median": 20.0, "p95": 40.0}


def test_a_run_in_which_a_request_failed_is_none(tmp_path):
    report = json.loads(json.dumps(REPORT))
    report["benchmarks"][0]["metrics"]["request_totals"] = {"successful": 11, "errored": 1}
    with pytest.raises(EngineError, match="not all requests were answered"):
        http.load(generator(tmp_path, report), "http://127.0.0.1:1", 1, tmp_path, tmp_path)


def test_a_server_that_ends_at_once_is_told_with_its_last_words(tmp_path):
    server = http.Server("broken", lambda port: [sys.executable, "-c", "print('no such model')"], {})
    with (
        pytest.raises(EngineError, match="broken didn't become healthy: no such model"),
        http.running(server, tmp_path / "log"),
    ):
        pass


def test_the_run_with_the_median_throughput_stands_for_all():
    runs = [{"output_tokens_per_second": speed, "number": i} for i, speed in enumerate((30.0, 10.0, 20.0))]
    assert http._median_run(runs)["number"] == 2


def test_the_page_has_a_row_for_each_server_and_number_of_clients(tmp_path):
    run = {
        "output_tokens_per_second": 300.0,
        "first_token_ms": {"median": 20.0, "p95": 4000.0},
        "between_tokens_ms": {"median": 3.0, "p95": 5.0},
    }
    result = {
        "format": RESULT_FORMAT,
        "kind": "http",
        "scenario": "http",
        "date": "2026-12-01 05:00 UTC",
        "command": "python -m ullage.ops.bench.http tiny",
        "versions": {"guidellm": "0.8.1"},
        "machine": {"processor": "some", "cores": 2, "memory_bytes": 1 << 30, "flags": [], "isas": []},
        "model": {"name": "tiny.gguf"},
        "settings": {"weight_type": "file"},
        "points": [{"server": "Ullage", "num_streams": 32, "median_run": run, "runs": [run]}],
        "failures": {"vLLM, bf16": "it didn't start"},
    }
    write_result(result, tmp_path)
    page = benchmarks_page(tmp_path)
    assert "| Ullage | 32 | 300 | 20 ms | 4,000 ms | 3.0 ms | 5.0 ms |" in page
    assert "- vLLM, bf16 is out: it didn't start" in page
