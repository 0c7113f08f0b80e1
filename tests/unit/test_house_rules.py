"""The house rules that a machine can check: sizes and names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
USUAL_FUNCTION_LINES = 35
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}

SOURCES = sorted((ROOT / "src").rglob("*.py"))
FILES = SOURCES + sorted((ROOT / "tests").rglob("*.py"))


def function_lines(path: Path) -> dict[str, int]:
    """Lines of each function, decorators and docstring included."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, functions)]
    return {f"{path.relative_to(ROOT)}::{node.name}": (node.end_lineno or 0) - node.lineno + 1 for node in nodes}


def imported_names(path: Path) -> set[str]:
    """Last parts of everything a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    names = [alias.name for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names]
    return {name.rpartition(".")[2] for name in names}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_fits_in_the_head(path):
    assert len(path.read_text("utf-8").splitlines()) <= MAX_FILE_LINES
    assert not VAGUE_NAMES & set(path.relative_to(ROOT).with_suffix("").parts)
    too_long = {name: lines for name, lines in function_lines(path).items() if lines > MAX_FUNCTION_LINES}
    assert too_long == {}


def test_nine_functions_in_ten_fit_on_a_screen():
    lengths = sorted(lines for path in SOURCES for lines in function_lines(path).values())
    assert lengths[int(len(lengths) * 0.9)] <= USUAL_FUNCTION_LINES


def test_the_native_extension_is_imported_in_one_file_only():
    importers = [path.relative_to(ROOT).as_posix() for path in FILES if "_native" in imported_names(path)]
    assert importers == ["src/ullage/kernels/native.py"]


def test_every_place_in_the_architecture_page_exists():
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    places = re.findall(r"`(\S+)::(\w+)`", text)
    assert len(places) >= 12
    for path, symbol in places:
        source = (ROOT / path).read_text("utf-8")
        assert re.search(rf"^(class|def|async def|static void) {symbol}\b", source, re.MULTILINE), f"{path}::{symbol}"


def test_the_rules_see_the_code():
    assert ROOT / "src/ullage/base/errors.py" in FILES
    assert function_lines(Path(__file__))["tests/unit/test_house_rules.py::function_lines"] == 5
