"""The table and the result file."""

from __future__ import annotations

import hashlib
import json

import pytest

import ullage
from ullage.ops.accuracy.divergence import Accuracy
from ullage.ops.accuracy.measure import Measurement, Workload
from ullage.ops.accuracy.pieces import Pieces, Text
from ullage.ops.accuracy.report import COLUMNS, Report

FIGURES = Accuracy(5, 0.00012345, 0.5, 1.5, 0.975, 12.34567, 12.3)


@pytest.fixture
def report(tmp_path) -> Report:
    (tmp_path / "tiny.gguf").write_bytes(b"weights")
    measured = [
        Measurement("ullage avx2", {"weight_type": "int8", "kv_cache_dtype": "bf16"}, "one row", 1.25, FIGURES),
        Measurement("llama.cpp", {"weight_type": "file's own", "kv_cache_dtype": "f16"}, "one row", 2.0, FIGURES),
    ]
    workload = Workload(Pieces(((1, 2, 3), (4, 5)), 9), 2, 16)
    return Report("ullage accuracy x", tmp_path / "tiny.gguf", Text(("a", "b"), "abc"), workload, {"p": "1"}, measured)


def test_the_file_says_what_was_measured_with_what_and_where(report, tmp_path):
    path = report.save(tmp_path)
    assert path.name.endswith("-accuracy-tiny.json")
    record = json.loads(path.read_text("utf-8"))
    assert (record["kind"], record["format"]) == ("accuracy", 1)
    assert record["command"] == "ullage accuracy x"
    assert record["versions"]["ullage"] == ullage.__version__
    assert record["versions"]["p"] == "1"
    assert record["machine"]["cores"] >= 1
    assert record["model"] == {"name": "tiny.gguf", "sha256": hashlib.sha256(b"weights").hexdigest()}
    assert record["text"] == {
        "names": ["a", "b"],
        "sha256": hashlib.sha256(b"abc").hexdigest(),
        "num_tokens": 9,
        "num_rows": 5,
        "rows_sha256": hashlib.sha256(b"[[1,2,3],[4,5]]").hexdigest(),
        "piece_rows": [3, 2],
    }
    assert record["reference_perplexity"] == 12.3
    assert record["results"][0]["formats"] == {"weight_type": "int8", "kv_cache_dtype": "bf16"}
    assert record["results"][0]["accuracy"]["mean_divergence"] == 0.00012345


def test_the_markdown_table_has_a_cell_for_each_column(report):
    shown = report.as_markdown()
    table = [line for line in shown.splitlines() if line.startswith("|")]
    assert table[0] == "| " + " | ".join(COLUMNS) + " |"
    assert {line.count("|") for line in table} == {len(COLUMNS) + 1}
    assert table[2] == ("| ullage avx2 | int8 | bf16 | one row | 0.000123 | 0.500000 | 1.500000 | 97.50% | 12.3457 |")
    assert "over the first 5 tokens of a, b" in shown
