"""docs/plan-cases.md is made from the cases. To write it anew: python -m tests.unit.plan.test_plan_cases_page"""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.plan.start_up_cases import CASES, Case, cases

from ullage.plan.as_engine import as_engine

PAGE = Path(__file__).parents[3] / "docs/plan-cases.md"
HEAD = """# What engines printed, and what the plan says

Start-up logs that people published, each worked out by `ullage plan CONFIG --as-engine FILE` from the model's published
configuration and the inputs in the log alone. *Exact*: whole numbers in the log decide, or its rounded sizes leave one
answer only. *Rounded*: the size of the pool is known to two decimals. Where a pool's size was printed that way, a
figure may differ by this rounding and no more; from the number of blocks, where that was printed too, it follows
exactly. *Negative control*: the published figures can't be true together; the plan says so, and what the arithmetic
gives instead. This page is generated, and tests check all of it.

Beside it stands what two calculators say of the same inputs: [kvfit](https://github.com/teilomillet/kvfit)
{kvfit_version} and [hf-mem](https://github.com/alvarobartt/hf-mem) {hf_version}, each asked for the bytes of a request;
the figure is what follows from them (the pool over that many bytes). They don't claim to know an engine's blocks and
groups. Of the {asked} figures below that can be had from such bytes, `ullage plan` has {ours} as printed, kvfit
{kvfit}, hf-mem {hf}. *no*: it refuses the model, or these keys and values.

| case | engine | kind | figure | printed | planned | kvfit | hf-mem |
|---|---|---|---|---:|---:|---:|---:|
"""
OTHERS = {
    name: json.loads((CASES / f"other_calculators/{name}.json").read_text("utf-8")) for name in ("kvfit", "hf-mem")
}
GIB, MIB = 1 << 30, 1 << 20
KINDS = ("exact", "rounded", "negative-control")


def fresh_page() -> str:
    table = "".join(row for kind in KINDS for case in cases(kind) for row in rows(case, kind))
    agreed = {"ullage": 0, **dict.fromkeys(OTHERS, 0)}
    asked = 0
    for case in cases("exact", "rounded"):
        report = as_engine(case.config, case.file())
        for name, printed in case.printed().items():
            if from_bytes(name, 1.0, case) is None:
                continue
            asked += 1
            agreed["ullage"] += case.agrees(name, printed, report[name])
            for calculator in OTHERS:
                agreed[calculator] += case.agrees(name, printed, other(calculator, name, case))
    head = HEAD.format(
        kvfit_version=OTHERS["kvfit"]["version"],
        hf_version=OTHERS["hf-mem"]["version"],
        asked=asked,
        ours=agreed["ullage"],
        kvfit=agreed["kvfit"],
        hf=agreed["hf-mem"],
    )
    return head + table


def rows(case: Case, kind: str) -> list[str]:
    report = as_engine(case.config, case.file())
    engine = f"{case.raw['engine_name']} {case.raw['engine_version'] or ''}".strip()
    shown = [(name, printed, report[name]) for name, printed in case.printed().items()]
    if kind == "negative-control":
        shown.append(("implausible", "yes", "yes" if report["implausible"] else "no"))
    source = case.raw["source_url"]
    link = f"[{case.name}]({source})" if source.startswith("https://") else case.name
    lines = []
    for name, printed, planned in shown:
        others = " | ".join(text(other(calculator, name, case)) for calculator in OTHERS)
        lines.append(f"| {link} | {engine} | {kind} | {name} | {text(printed)} | {text(planned)} | {others} |\n")
    return lines


def other(calculator: str, name: str, case: Case) -> float | str:
    """What a calculator's bytes come to; a word where there are none."""
    answer = OTHERS[calculator]["answers"].get(case.name, {})
    if "error" in answer:
        return "no"
    figure = from_bytes(name, answer["bytes_per_rank"], case) if "bytes_per_rank" in answer else None
    return "-" if figure is None else round(figure, 2)


def from_bytes(name: str, num_bytes: float, case: Case) -> float | None:
    """A figure out of the bytes of one request; None: it is about something else."""
    answer = OTHERS["kvfit"]["answers"].get(case.name)
    pool = case.expect.get("given", {}).get("kv_memory_gib")
    if answer is None:
        return None
    if name == "capacity_tokens" and pool is not None:
        return pool * GIB * answer["tokens"] / num_bytes
    if name == "max_concurrency" and pool is not None:
        return pool * GIB / num_bytes
    if name == "kv_bytes_per_token":
        return num_bytes / answer["tokens"]
    units = {"kv_mib": MIB, "kv_gib": GIB, "kv_gib_needed": GIB, "kv_bytes": 1}
    halves = {"k_mib": 2 * MIB, "v_mib": 2 * MIB, "k_gib": 2 * GIB, "v_gib": 2 * GIB}
    unit = {**units, **halves}.get(name)
    return None if unit is None else num_bytes / unit


def text(value: object) -> str:
    return f"{value:,.4f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def test_the_page_of_cases_is_current():
    assert PAGE.read_text("utf-8") == fresh_page()


def test_the_page_has_every_case_that_is_decidable():
    page = PAGE.read_text("utf-8")
    assert all(case.name in page for kind in KINDS for case in cases(kind))


if __name__ == "__main__":
    PAGE.write_text(fresh_page(), "utf-8")
