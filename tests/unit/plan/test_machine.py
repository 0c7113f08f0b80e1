from __future__ import annotations

import os
from pathlib import Path

import pytest

from ullage.plan import machine


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes files of control groups; this process is in ``/slice/service`` (or where ``own`` says)."""
    monkeypatch.setattr(machine, "CGROUP_ROOT", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "OWN_CGROUP", tmp_path / "own")
    (tmp_path / "own").write_text("0::/slice/service\n")

    def write(group: str, own: str | None = None, **files: str) -> None:
        folder = tmp_path / "cgroup" / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text + "\n")
        if own is not None:
            (tmp_path / "own").write_text(own)

    return write


def system_available() -> int:
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("group", ["slice/service", "slice", "."], ids=["own", "parent", "root"])
def test_the_limit_of_a_group_or_of_one_above_it_counts(cgroup, group):
    cgroup(group, memory__max="3000000", memory__current="1000000")
    assert machine.available_memory_bytes() == 2_000_000


def test_the_narrowest_limit_counts(cgroup):
    cgroup("slice", memory__max="3000000", memory__current="2500000")
    cgroup("slice/service", memory__max="2000000", memory__current="1000000")
    assert machine.available_memory_bytes() == 500_000


def test_the_limit_of_another_group_does_not_count(cgroup):
    cgroup("slice/other", memory__max="3000000", memory__current="1000000")
    assert machine.available_memory_bytes() > 3_000_000


def test_file_cache_that_can_be_dropped_is_available(cgroup):
    cgroup("slice", memory__max="3000000", memory__current="2500000", memory__stat="anon 5\ninactive_file 1500000")
    assert machine.available_memory_bytes() == 2_000_000


def test_groups_of_version_1_count_too(cgroup):
    files = {"memory__limit_in_bytes": "3000000", "memory__usage_in_bytes": "2500000"}
    cgroup("memory/box", own="7:cpu,memory:/box\n3:pids:/\n", **files, memory__stat="total_inactive_file 100")
    assert machine.available_memory_bytes() == 500_100


def test_a_group_that_is_full_has_nothing_left(cgroup):
    cgroup("slice", memory__max="3000000", memory__current="4000000")
    assert machine.available_memory_bytes() == 0


def test_a_group_without_limit_has_the_systems_memory(cgroup):
    cgroup("slice", memory__max="max", memory__current="1000000")
    assert machine.available_memory_bytes() == pytest.approx(system_available(), rel=0.2)


def test_no_control_groups_are_no_limit(cgroup):
    assert machine.available_memory_bytes() == pytest.approx(system_available(), rel=0.2)


def test_resident_memory_is_that_of_the_process_asked_for():
    assert machine.resident_bytes() == pytest.approx(machine.resident_bytes(os.getpid()), rel=0.1)
    assert machine.resident_bytes() > 1 << 20


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", None), ("100000 100000", 1), ("199999 100000", 1), ("50000 100000", 1), ("9900000 100000", None)],
)
def test_a_quota_limits_the_cores(cgroup, quota, expected):
    cgroup("slice", cpu__max=quota)
    assert machine.num_cores() == (expected or len(os.sched_getaffinity(0)))


def test_cores_are_those_this_process_may_run_on():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert machine.num_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert machine.num_cores() <= len(allowed)
