"""Counts that survive a restart."""

from dataclasses import replace

from ullage.engine.client import EngineFigures
from ullage.engine.totals import COUNTS, NOTHING, add_figures, with_totals_of


def test_counts_are_added_and_the_rest_is_of_now() -> None:
    before = replace(NOTHING, num_running=3, num_aborts={"client": 1, "deadline": 2}, **dict.fromkeys(COUNTS, 10))
    now = replace(NOTHING, num_running=1, num_aborts={"client": 4}, **dict.fromkeys(COUNTS, 5))
    total = with_totals_of(before, now)
    assert total.num_running == 1
    assert total.num_aborts == {"client": 5, "deadline": 2}
    assert [getattr(total, name) for name in COUNTS] == [15] * len(COUNTS)


def test_figures_are_added_whichever_of_them_is_empty() -> None:
    some = EngineFigures({"head": 1.0}, (1, 2), 3.0)
    assert add_figures(EngineFigures(), some) == some == add_figures(some, EngineFigures())
    assert add_figures(some, EngineFigures({"ffn": 1.0}, (4, 5), 6.0)) == EngineFigures(
        {"ffn": 1.0, "head": 1.0}, (5, 7), 9.0
    )
