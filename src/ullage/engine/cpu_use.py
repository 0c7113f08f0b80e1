"""Whether a process or a thread works, by the system's own account: a long step and a dead one are equally silent."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class CpuUse:
    """Of a process, or of a thread of this process.

    :param task: ``PID``, or ``self/task/TID``
    """

    def __init__(self, task: str) -> None:
        self._stat = Path("/proc") / task / "stat"
        self._cpu_seconds = 0.0

    def is_working(self) -> bool:
        """Whether it ran, or would have if it had got a core, since the last time this was asked. False: it ended."""
        try:
            fields = self._stat.read_text().rpartition(")")[2].split()
        except OSError:
            return False
        cpu_seconds = (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND  # in user and in kernel mode
        worked, self._cpu_seconds = cpu_seconds > self._cpu_seconds, cpu_seconds
        return worked or fields[0] in "RD"
