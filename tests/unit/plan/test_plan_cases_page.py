"""docs/plan-cases.md is made from the cases. To write it anew: python -m tests.unit.plan.test_plan_cases_page"""

from __future__ import annotations

from pathlib import Path

from tests.unit.plan.start_up_cases import Case, cases

from ullage.plan.as_engine import as_engine

PAGE = Path(__file__).parents[3] / "docs/plan-cases.md"
HEAD = """# What engines printed, and what the plan says

Start-up logs that people published, each worked out by `ullage plan CONFIG --as-engine FILE` from the model's published
configuration and the inputs in the log alone. *Exact*: whole numbers in the log decide, or its rounded sizes leave one
answer only. *Rounded*: the size of the pool is known to two decimals. Where a pool's size was printed that way, a
figure may differ by this rounding and no more; from the number of blocks, where that was printed too, it follows
exactly. *Negative control*: the published figures can't be true together; the plan says so, and what the arithmetic
gives instead. This page is generated, and tests check all of it.

| case | engine | kind | figure | printed | planned |
|---|---|---|---|---:|---:|
"""
KINDS = ("exact", "rounded", "negative-control")


def fresh_page() -> str:
    return HEAD + "".join(row for kind in KINDS for case in cases(kind) for row in rows(case, kind))


def rows(case: Case, kind: str) -> list[str]:
    report = as_engine(case.config, case.file())
    engine = f"{case.raw['engine_name']} {case.raw['engine_version'] or ''}".strip()
    shown = [(name, printed, report[name]) for name, printed in case.printed().items()]
    if kind == "negative-control":
        shown.append(("implausible", "yes", "yes" if report["implausible"] else "no"))
    source = case.raw["source_url"]
    link = f"[{case.name}]({source})" if source.startswith("https://") else case.name
    return [f"| {link} | {engine} | {kind} | {name} | {text(p)} | {text(w)} |\n" for name, p, w in shown]


def text(value: object) -> str:
    return f"{value:,.4f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def test_the_page_of_cases_is_current():
    assert PAGE.read_text("utf-8") == fresh_page()


def test_the_page_has_every_case_that_is_decidable():
    page = PAGE.read_text("utf-8")
    assert all(case.name in page for kind in KINDS for case in cases(kind))


if __name__ == "__main__":
    PAGE.write_text(fresh_page(), "utf-8")
