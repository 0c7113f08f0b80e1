"""What this machine gives a process: memory that may be used, cores that may run. Container limits count."""

from __future__ import annotations

import ctypes
import gc
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# Where control groups are mounted (version 2, and the memory controller of version 1), and which one is ours.
CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def available_memory_bytes() -> int:
    """Bytes this process could still take without swapping: the system's estimate, or a control group's if lower.

    File cache that a group could drop counts as available, as it does in the system's own estimate.
    """
    return min([_meminfo_bytes("MemAvailable"), *_cgroup_memory_left()])


def resident_bytes(pid: int | None = None) -> int:
    """Physical memory that a process holds now (this one by default)."""
    fields = Path(f"/proc/{pid or 'self'}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def settled_bytes() -> int:
    """Physical memory that this process holds once what it no longer uses is given back: what it will go on holding."""
    gc.collect()
    with suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
    return resident_bytes()


def num_cores() -> int:
    """Cores this process may keep busy: those it may run on, or fewer by a control group's quota, at least 1."""
    quotas = [
        int(fields[0]) / int(fields[1])
        for group in _own_groups(CGROUP_ROOT)
        if len(fields := _read(group / "cpu.max").split()) == 2 and fields[0].isdigit()
    ]
    return max(1, math.floor(min([len(os.sched_getaffinity(0)), *quotas])))


def _cgroup_memory_left() -> Iterator[int]:
    for group in _own_groups(CGROUP_ROOT):
        yield from _memory_left(group, "memory.max", "memory.current", "inactive_file")
    for group in _own_groups(CGROUP_ROOT / "memory"):
        yield from _memory_left(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _memory_left(group: Path, limit_file: str, usage_file: str, cache_name: str) -> Iterator[int]:
    """Nothing when the group sets no limit."""
    limit, usage = _read(group / limit_file), _read(group / usage_file)
    if limit.isdigit() and usage.isdigit():
        statistics = dict(line.split(maxsplit=1) for line in _read(group / "memory.stat").splitlines())
        yield max(0, int(limit) - int(usage) + int(statistics.get(cache_name, 0)))


def _own_groups(root: Path) -> Iterator[Path]:
    """The group of this process and all above it: each may set a limit. Inside a container the first is the root."""
    for line in _read(OWN_CGROUP).splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" or "memory" in controllers.split(","):
            own = root / path.lstrip("/")
            yield from (own, *(parent for parent in own.parents if parent.is_relative_to(root)))


def _meminfo_bytes(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise AssertionError(f"/proc/meminfo has no {name}")


def _read(path: Path) -> str:
    """Empty when there is no such file."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
