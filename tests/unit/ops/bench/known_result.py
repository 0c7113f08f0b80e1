"""A result file of the whole scenario, from engines with known speeds."""

from __future__ import annotations

from typing import Any

from tests.unit.ops.bench.known_subject import ACCOUNTS

from ullage.ops.bench.measure import Measured
from ullage.ops.bench.roofline import Machine, ModelCosts, limit_of
from ullage.ops.bench.run import OURS, RESULT_FORMAT, describe_point
from ullage.ops.bench.scenario import Point, load_scenario

COSTS = ModelCosts(106_000_000, 28_000_000, 134_000_000, 768.0, 576, (None,) * 30)
MACHINE = Machine(31e9, 0.94e12)


def known_result(scenario: str = "full") -> dict[str, Any]:
    """Ours reaches 80 % of each roofline and starts in 1 s; one peer is 4 times as slow, the other doesn't run."""
    return {
        "format": RESULT_FORMAT,
        "kind": "engine",
        "scenario": scenario,
        "date": "2026-11-30 12:00 UTC",
        "command": f"ullage bench engine tiny.gguf --scenario {scenario}",
        "commit": "0123456789abcdef",
        "dirty": False,
        "versions": {"ullage": "0.1.0", "python": "3.11.7"},
        "machine": {"processor": "Abacus", "cores": 2, "flags": ["avx2"], "memory_bytes": 2**34},
        "model": {"name": "tiny.gguf"},
        "settings": {"weight_type": "int8"},
        "runner": "native (known)",
        "rooflines": {
            "read": {
                "working_set_bytes": 134_000_000,
                "median_bytes_per_second": 31e9,
                "best_bytes_per_second": 47e9,
                "samples_by_prefetch_bytes": {"0": [31e9]},
            },
            "peak_operations_per_second": {"known": {"int8": 0.94e12}},
            "used": {"read_bytes_per_second": 31e9, "operations_per_second": 0.94e12},
        },
        "peers": {"slow": "1.0"},
        "failures": {"broken": "broken ended with exit code -11: it said nothing"},
        "points": [_point(point) for point in load_scenario(scenario).points],
    }


def _point(point: Point) -> dict[str, Any]:
    if point.kind == "memory":
        measured = {OURS: Measured([1010, 1020], {"accounts": ACCOUNTS})}
    else:
        limit = limit_of(point, COSTS, MACHINE, 512)
        ours, slow = (1.0, 4.0) if limit is None else (0.8 * limit[0], 0.2 * limit[0])
        measured = {
            OURS: Measured([ours * 0.9, ours, ours]),
            "slow": Measured([slow]),
            "broken": Measured(error="it broke"),
        }
    return describe_point(point, measured, COSTS, MACHINE, 512)
