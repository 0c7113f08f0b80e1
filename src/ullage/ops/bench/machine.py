"""What a result file says of the machine and of what ran on it. No names and no paths."""

from __future__ import annotations

import platform
import re
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ullage import __version__
from ullage.kernels.native import native_isas
from ullage.plan.machine import num_cores

CPUINFO = Path("/proc/cpuinfo")
MEMINFO = Path("/proc/meminfo")
LAST_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
FLAGS = (
    *("avx2", "fma", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm", "bf16", "sve"),
)
"""Of the processor: those that decide which kernels run, here or in a peer."""


def describe_machine() -> dict[str, Any]:
    cpuinfo = _read(CPUINFO)
    flags = _field(cpuinfo, "flags") or _field(cpuinfo, "Features")
    memory_kib = re.match(r"MemTotal:\s+(\d+) kB", _read(MEMINFO))
    return {
        "processor": _field(cpuinfo, "model name") or platform.machine(),
        "family_model": f"{_field(cpuinfo, 'cpu family')}/{_field(cpuinfo, 'model')}",
        "cores": num_cores(),
        "flags": [flag for flag in FLAGS if flag in flags.split()],
        "hypervisor": "hypervisor" in flags.split(),
        "last_cache": _read(LAST_CACHE).strip(),
        "memory_bytes": int(memory_kib[1]) * 1024 if memory_kib else None,
        "isas": native_isas(),
    }


def describe_versions() -> dict[str, str]:
    return {
        "ullage": __version__,
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
    }


def describe_commit(folder: Path = Path(__file__).parent) -> dict[str, Any]:
    """``{"commit": None}`` where the code isn't in a git repository of its own."""
    commit = _git(folder, "rev-parse", "HEAD")
    tracked = _git(folder, "ls-files", "--error-unmatch", Path(__file__).name)
    if not commit or not tracked:  # installed below somebody else's repository
        return {"commit": None, "dirty": None}
    return {"commit": commit, "dirty": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    except OSError:  # no git
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _field(cpuinfo: str, name: str) -> str:
    match = re.search(rf"^{name}\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    return match[1].strip() if match else ""
