"""What is said of the machine, from given files."""

from __future__ import annotations

from ullage.ops.bench import machine
from ullage.ops.bench.machine import describe_commit, describe_machine, describe_versions

CPUINFO = """processor\t: 0
cpu family\t: 6
model\t\t: 143
model name\t: Abacus 9000
flags\t\t: fpu sse2 avx2 fma avx512f hypervisor

processor\t: 1
model name\t: Abacus 9000
"""


def test_the_processor_its_flags_and_the_memory(monkeypatch, tmp_path):
    for name, text in {"CPUINFO": CPUINFO, "MEMINFO": "MemTotal:  1024 kB\n", "LAST_CACHE": "32768K\n"}.items():
        path = tmp_path / name
        path.write_text(text)
        monkeypatch.setattr(machine, name, path)
    described = describe_machine()
    assert described["processor"] == "Abacus 9000"
    assert described["family_model"] == "6/143"
    assert described["flags"] == ["avx2", "fma", "avx512f"]
    assert described["hypervisor"] is True
    assert described["last_cache"] == "32768K"
    assert described["memory_bytes"] == 1 << 20


def test_files_that_are_not_there_leave_gaps(monkeypatch, tmp_path):
    for name in ("CPUINFO", "MEMINFO", "LAST_CACHE"):
        monkeypatch.setattr(machine, name, tmp_path / "none")
    described = describe_machine()
    assert described["memory_bytes"] is None
    assert described["processor"]


def test_without_a_repository_there_is_no_commit(tmp_path):
    assert describe_commit(tmp_path) == {"commit": None, "dirty": None}


def test_versions_name_what_ran():
    assert {"ullage", "python", "numpy"} <= set(describe_versions())
