"""docs/server-cases.md names every case once, and tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/server-cases.md"
ROW = re.compile(r"^\| \[([A-Z]+-\d\d)\]\((https://\S+)\) \| ([^|]+) \| ([^|]+) \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`(tests/[^`:]+)::(\w+)`")

CASES = {
    "CAC": (1, 3),
    "CHT": (1, 2),
    "GGU": (1, 2, 3),
    "GW": (1, 2, 4),
    "HTTP": (1, 3),
    "LIM": (1, 3, 5),
    "LOG": (2, 3),
    "OPS": (1, 3, 4),
    "PAR": (1, 3, 4),
    "SCH": (1, 3, 4, 6),
    "SEC": (1, 2),
    "STO": (1, 2),
    "STR": (1, 2, 4, 6),
    "TOOL": (1,),
}
IDS = {f"{area}-{number:02}" for area, numbers in CASES.items() for number in numbers}
NOT_YET_SHOWN: set[str] = set()


def rows() -> dict[str, str]:
    """What shows each case."""
    found = ROW.findall(PAGE.read_text("utf-8"))
    assert len({case for case, *_ in found}) == len(found), "a case stands there twice"
    return {case: shown for case, _, _, _, shown in found}


def names_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_case_stands_there_once():
    assert len(IDS) == 36
    assert set(rows()) == IDS
    assert PAGE.read_text("utf-8").count("\n| [") == len(IDS)


def test_every_test_that_is_named_exists():
    for case, shown in rows().items():
        named = TEST.findall(shown)
        assert "<br>".join(f"`{path}::{name}`" for path, name in named) == shown or case in NOT_YET_SHOWN, case
        for path, name in named:
            assert name in names_in(path), f"{case}: {path}::{name}"


def test_a_case_without_a_test_is_named_as_such():
    assert {case for case, shown in rows().items() if shown == "not yet shown"} == NOT_YET_SHOWN
