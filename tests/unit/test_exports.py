"""What ``import ullage`` offers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import ullage


def names_for_the_type_checker() -> set[str]:
    (guarded,) = (node for node in ast.parse(Path(ullage.__file__).read_text()).body if isinstance(node, ast.If))
    return {alias.name for node in guarded.body for alias in node.names}


def test_every_export_can_be_had_and_nothing_else_is_listed():
    for name in ullage.__all__:
        assert getattr(ullage, name) is not None
    assert set(ullage.__all__) == names_for_the_type_checker() | {"__version__"}
    assert dir(ullage) == sorted(ullage.__all__)


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(ullage, "VLM")


def test_importing_ullage_imports_nothing_heavy():
    script = "import sys, ullage, ullage.cli.main; print([m for m in ('numpy', 'fastapi', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": ":".join(sys.path)}, stdout=-1, check=True)
    assert done.stdout.decode().strip() == "[]"
