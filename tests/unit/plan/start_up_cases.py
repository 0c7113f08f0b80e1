"""Real start-up logs as cases: what engines printed, and what follows from their inputs (``cases/README.md``)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

CASES = Path(__file__).parent / "cases"
NOT_FIGURES = {
    "given",
    "tolerance_rel",
    "exact_figures",
    "decimals",
    "from_blocks",
    "weights_tolerance_rel",
    "implausible",
}


@dataclass(frozen=True)
class Case:
    """One start of an engine."""

    raw: dict

    @property
    def name(self) -> str:
        return self.raw["id"]

    @property
    def expect(self) -> dict:
        return self.raw["expect"]

    @property
    def config(self) -> dict:
        return json.loads((CASES / self.raw["config"]).read_text("utf-8"))

    def file(self, **changes: object) -> dict:
        """What an engine's file holds; a change to None leaves an input out."""
        given = {**self.expect.get("given", {}), **changes}
        outer = {name: self.raw[name] for name in ("engine_name", "engine_version", "kv_dtype_name")}
        return {**outer, "given": {name: value for name, value in given.items() if value is not None}}

    def printed(self) -> dict[str, int | float]:
        return {name: value for name, value in self.expect.items() if name not in NOT_FIGURES}

    def agrees(self, name: str, printed: int | float, worked_out: object) -> bool:
        """Equal after rounding to the printed digits; where the input itself was printed, within its rounding."""
        if not isinstance(worked_out, (int, float)):
            return False
        tolerance = 0.0 if name in self.expect.get("exact_figures", ()) else self.expect["tolerance_rel"]
        if isinstance(printed, int):
            return abs(worked_out - printed) <= tolerance * printed
        decimals = self.expect.get("decimals", {}).get(name, 2)
        if name == "weights_gib_per_rank":
            tolerance, decimals = self.expect["weights_tolerance_rel"], 4
        if round(worked_out, decimals) == printed:
            return True
        return tolerance > 0 and abs(worked_out - printed) <= tolerance * printed + 0.5 * 10**-decimals


def cases(*kinds: str) -> list[Case]:
    """Cases of the kinds, at least one of each."""
    lines = (CASES / "kv_logs.jsonl").read_text("utf-8").splitlines()
    found = [Case(json.loads(line)) for line in lines]
    chosen = [case for case in found if case.raw["test"] in kinds]
    assert {case.raw["test"] for case in chosen} == set(kinds)
    return chosen
