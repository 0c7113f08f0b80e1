"""Tables of a result."""

from __future__ import annotations

from tests.unit.ops.bench.known_result import known_result

from ullage.ops.bench.result import points_of
from ullage.ops.bench.tables import figure, in_series, memory_table, speed_table


def test_a_column_for_each_point_and_a_row_for_each_engine():
    header, rows = speed_table(known_result("standard")["points"])
    assert header[:3] == ["", "start_s", "decode1_tok_s"]
    by_name = {row[0]: row[1:] for row in rows}
    assert by_name["Ullage"][0] == "1"
    assert by_name["roofline"][0] == ""
    assert by_name["share of it"][1:] == ["80%"] * 4
    assert by_name["slow"][0] == "4"
    assert by_name["broken"] == ["–"] * 5
    assert by_name["Ullage / best peer"] == ["4.00 ×"] * 5


def test_a_series_is_named_once():
    header, _ = speed_table(points_of(known_result(), "decode-batch"))
    assert header == ["decode-batch", "1", "2", "4", "8", "16", "32", "48", "64"]


def test_memory_shows_how_far_off_the_plan_the_process_is():
    _, rows = memory_table(points_of(known_result(), "memory"))
    assert rows[0] == ["0 MiB", "1,000", "0", "1,010", "1,020", "+2.0%"]


def test_figures_have_the_digits_that_were_measured():
    assert [figure(value) for value in (None, 1177.4, 66.0, 0.4321)] == ["–", "1,177", "66", "0.432"]


def test_single_figures_stand_together_and_each_series_by_itself():
    tables = in_series([point for point in known_result()["points"] if point["kind"] != "memory"])
    assert {name: len(points) for name, points in tables.items()} == {
        "": 5,
        "decode-batch": 8,
        "decode-context": 7,
        "prefill-length": 8,
    }
