"""Totals that go on over the restarts of an engine's process: what was counted before is added to what is told now."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import zip_longest

from ullage.engine.client import EngineFigures, EngineStatus

COUNTS = ("num_steps", "num_preemptions", "num_prompt_tokens", "num_generated_tokens", "num_prefix_hit_tokens")
NOTHING = EngineStatus(False, "", 0, 0, 0, 0.0)


def with_totals_of(before: EngineStatus, now: EngineStatus) -> EngineStatus:
    """``now``, with all that was counted before it."""
    counts = {name: getattr(before, name) + getattr(now, name) for name in COUNTS}
    return replace(now, num_aborts=Counter(before.num_aborts) + Counter(now.num_aborts), **counts)


def add_figures(before: EngineFigures, now: EngineFigures) -> EngineFigures:
    stages = before.stage_seconds.keys() | now.stage_seconds.keys()
    return EngineFigures(
        stage_seconds={
            name: before.stage_seconds.get(name, 0.0) + now.stage_seconds.get(name, 0.0) for name in sorted(stages)
        },
        token_gap_counts=tuple(
            a + b for a, b in zip_longest(before.token_gap_counts, now.token_gap_counts, fillvalue=0)
        ),
        token_gap_seconds=before.token_gap_seconds + now.token_gap_seconds,
    )
