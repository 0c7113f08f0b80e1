"""The page of results."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.ops.bench.known_result import known_result

from ullage.ops.bench.plots import plots_of
from ullage.ops.bench.report import benchmarks_page
from ullage.ops.bench.result import read_results, write_result
from ullage.ops.bench.run import RESULT_FORMAT

ROOT = Path(__file__).parents[4]
RESULTS = ROOT / "benchmarks" / "results"


def test_the_page_is_what_the_results_make_of_it():
    """If it isn't: ``ullage bench report``."""
    assert (ROOT / "BENCHMARKS.md").read_text("utf-8") == benchmarks_page(RESULTS)


def test_every_plot_of_the_page_is_there():
    wanted = {f"{name}-{plot}" for name, result in read_results(RESULTS, "engine").items() for plot in plots_of(result)}
    folder = ROOT / "benchmarks" / "plots"
    assert {path.stem for path in folder.glob("*.png")} == wanted
    assert {path.stem for path in folder.glob("*.svg")} == wanted


def test_a_result_has_its_section_with_tables_plots_and_reasons(tmp_path):
    assert "No results have been recorded yet" in benchmarks_page(tmp_path)
    write_result(known_result("full"), tmp_path)
    page = benchmarks_page(tmp_path)
    assert "## tiny.gguf, int8 weights, 2026-11-30" in page
    assert "| Ullage / best peer | 4.00 × |" in page
    assert "31.0 GB/s in the median, 47.0 at best" in page
    assert "- broken is out: broken ended with exit code -11" in page
    assert page.count("![") == 4
    assert "Commit 0123456789ab;" in page


def test_an_accuracy_has_its_section(tmp_path):
    accuracy = {"mean_divergence": 0.0001, "p99_divergence": 0.001, "max_divergence": 0.01}
    accuracy |= {"top1_agreement": 0.995, "perplexity": 12.5}
    measured = {
        "engine": "Ullage",
        "formats": {"weight_type": "int8", "kv_cache_dtype": "bf16"},
        "feeding": "one row",
        "accuracy": accuracy,
    }
    result = {
        "format": RESULT_FORMAT,
        "kind": "accuracy",
        "date": "2026-11-30 12:00 UTC",
        "command": "ullage accuracy tiny.gguf",
        "model": {"name": "tiny.gguf"},
        "text": {"names": ["a.txt"], "num_rows": 4096},
        "reference_perplexity": 12.4,
        "results": [measured],
    }
    (tmp_path / "one.json").write_text(json.dumps(result))
    page = benchmarks_page(tmp_path)
    assert "## tiny.gguf, accuracy, 2026-11-30" in page
    assert "| Ullage, int8, bf16, one row | 0.000100 | 0.001000 | 0.010000 | 99.50% | 12.5000 |" in page
