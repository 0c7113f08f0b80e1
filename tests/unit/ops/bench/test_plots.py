"""Plots are drawn for what a result has."""

from __future__ import annotations

from tests.unit.ops.bench.known_result import known_result

from ullage.ops.bench.plots import PLOTS, draw_plots, plots_of


def test_a_full_result_gives_each_plot_twice(tmp_path):
    files = draw_plots("run", known_result("full"), tmp_path)
    assert [path.name for path in files] == [f"run-{plot}.png" for plot in PLOTS]
    for path in files:
        assert path.read_bytes().startswith(b"\x89PNG")
        text = path.with_suffix(".svg").read_text()
        assert "<svg" in text
        assert str(tmp_path) not in text


def test_standard_has_no_series_and_no_plot(tmp_path):
    assert plots_of(known_result("standard")) == []
    assert draw_plots("run", known_result("standard"), tmp_path) == []
