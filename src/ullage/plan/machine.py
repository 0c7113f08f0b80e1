"""What this machine gives a process: memory that may be used, cores that may run."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP_FILES = (
    # (limit, current use): version 2, then version 1.
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def available_memory_bytes() -> int:
    """Bytes this process could still take without swapping: the system's estimate, or the container's if lower."""
    candidates = [_meminfo_bytes("MemAvailable")]
    for limit_file, current_file in _CGROUP_FILES:
        limit, current = _read_number(limit_file), _read_number(current_file)
        if limit is not None and current is not None:
            candidates.append(max(0, limit - current))
    return min(candidates)


def resident_bytes(pid: int | None = None) -> int:
    """Physical memory that a process holds now (this one by default)."""
    fields = Path(f"/proc/{pid or 'self'}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def num_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0))


def _meminfo_bytes(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise AssertionError(f"/proc/meminfo has no {name}")


def _read_number(path: str) -> int | None:
    """None when the file is missing or says ``max``."""
    try:
        text = Path(path).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
