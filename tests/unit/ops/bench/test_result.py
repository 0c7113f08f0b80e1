"""Result files, and what is read from them."""

from __future__ import annotations

import json

import pytest
from tests.unit.ops.bench.known_result import known_result

from ullage.base.errors import ConfigError
from ullage.ops.bench.result import (
    best_peer,
    machine_line,
    peer_names,
    points_of,
    ratio_to_best_peer,
    read_results,
    summary,
    write_result,
)
from ullage.ops.bench.run import OURS


def test_a_result_is_written_and_read_again(tmp_path):
    path = write_result(known_result("standard"), tmp_path / "new")
    assert path.name == "2026-11-30-tiny-int8-standard.json"
    (result,) = read_results(path.parent, "engine").values()
    assert result["points"][0]["results"][OURS]["samples"] == [0.9, 1.0, 1.0]
    assert read_results(path.parent, "accuracy") == {}


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_another_file_among_the_results_is_told(tmp_path, text):
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(ConfigError, match=r"other\.json is not a result"):
        read_results(tmp_path, "engine")


def test_a_result_of_another_format_is_told(tmp_path):
    (tmp_path / "old.json").write_text(json.dumps(known_result("standard") | {"format": 0}))
    with pytest.raises(ConfigError, match="format 0"):
        read_results(tmp_path, "engine")


def test_the_best_peer_is_the_fastest_that_ran():
    points = {point["name"]: point for point in known_result("standard")["points"]}
    assert peer_names(list(points.values())) == ["slow", "broken"]
    assert best_peer(points["start_s"]) == ("slow", 4.0)
    assert {name: ratio_to_best_peer(point) for name, point in points.items()} == {
        name: pytest.approx(4) for name in points
    }


def test_without_a_peer_there_is_no_ratio():
    (point, *_) = points_of(known_result("memory"), "memory")
    assert ratio_to_best_peer(point) is None


def test_the_summary_has_the_headline_figures_by_name():
    summed = summary(known_result("full"))
    names = ["start_s", "decode1_tok_s", "decode32_tok_s", "decode64_tok_s", "prefill_tok_s"]
    assert list(summed)[:5] == names
    assert summed["start_s"] == 1.0
    assert summed["rooflines"]["decode1_tok_s"]["share"] == pytest.approx(0.8)
    assert summed["rooflines"]["decode1_tok_s"]["limit"] == pytest.approx(summed["decode1_tok_s"] / 0.8, rel=1e-4)
    assert summed["peers"]["broken"]["prefill_tok_s"] is None
    assert summed["ratio_to_best_peer"]["prefill_tok_s"] == pytest.approx(4)
    assert summed["failures"] == {"broken": "broken ended with exit code -11: it said nothing"}
    json.dumps(summed)


def test_the_machine_fits_in_a_line():
    assert machine_line(known_result("standard")) == "Abacus, 2 cores, 16 GiB; avx2"
