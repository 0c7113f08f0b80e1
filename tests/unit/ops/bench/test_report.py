"""The page of results."""

from __future__ import annotations

from pathlib import Path

from tests.unit.ops.bench.known_result import known_result

from ullage.ops.bench.plots import plots_of
from ullage.ops.bench.report import benchmarks_page
from ullage.ops.bench.result import read_results, write_result

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
