"""The audit log: one JSON object in a line, written by a thread of its own, in files of bounded size.

Nobody who tells it something waits for a disk. What can't be written yet is queued up to a bound; what goes beyond the
bound is counted, and the log itself tells how many lines it lost.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from ullage.base.errors import ConfigError

MakeLine = Callable[[], Mapping[str, object]]
"""Called on the writer's thread."""

LINE_BYTES = 1024
MAX_QUEUED_BYTES = 16 << 20
RETRY_SECONDS = 1.0
CLOSE_SECONDS = 10.0
MODE = 0o600

logger = logging.getLogger(__name__)


class AuditLog:
    """Starts its thread at once; ``close`` ends it when all is written.

    :param max_bytes: of one file
    :param num_files: the present one, and the older ones: ``path.1`` is the latest of them
    :raises ConfigError: the file can't be had
    """

    def __init__(self, path: Path, *, max_bytes: int, num_files: int, max_queued_bytes: int = MAX_QUEUED_BYTES) -> None:
        try:
            self._file = RotatingFile(path, max_bytes, num_files)
        except OSError as error:
            hint = "name a file in a folder that this user may write to"
            raise ConfigError(f"can't write the audit log {path}: {error.strerror}", hint=hint) from error
        self._path = path
        self._max_queued_bytes = max_queued_bytes
        self._changed = threading.Condition()
        self._queue: deque[tuple[MakeLine, int]] = deque()
        self._num_queued_bytes = 0
        self._closing = False
        self._failing = False
        self._num_lost = 0
        self._num_lost_told = 0
        self._thread = threading.Thread(target=self._run, name="audit-log", daemon=True)
        self._thread.start()

    @property
    def num_lost(self) -> int:
        """Lines that were never written."""
        return self._num_lost

    @property
    def is_failing(self) -> bool:
        """What was told last couldn't be written."""
        return self._failing or not self._thread.is_alive()

    @property
    def keeps_up(self) -> bool:
        """Lines are written, and there is room for those of requests that begin now."""
        return not self.is_failing and 2 * self._num_queued_bytes <= self._max_queued_bytes

    def write(self, make_line: MakeLine, num_bytes: int = LINE_BYTES) -> None:
        """Never waits for a disk.

        :param num_bytes: about how much memory the line holds until it is written
        """
        with self._changed:
            if self._closing or self._num_queued_bytes + num_bytes > self._max_queued_bytes:
                self._num_lost += 1
                return
            self._queue.append((make_line, num_bytes))
            self._num_queued_bytes += num_bytes
            self._changed.notify()

    def close(self) -> None:
        """Writes what is queued. Idempotent; may block, but not for ever."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            logger.error("the audit log %s takes too long to be written: its last lines may be missing", self._path)

    def _run(self) -> None:
        while self._wait_for_line():
            make_line, num_bytes = self._queue[0]
            line = _encode(make_line())
            while not self._try_to_write(line):
                if self._wait_to_try_again():
                    self._give_up()
                    return
            with self._changed:
                self._queue.popleft()
                self._num_queued_bytes -= num_bytes
        self._try_to_write(b"")
        self._file.close()

    def _wait_for_line(self) -> bool:
        """False: there is none, and none will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            return bool(self._queue)

    def _try_to_write(self, line: bytes) -> bool:
        """The line, and before it how many were lost since the last one."""
        num_lost = self._num_lost
        try:
            if num_lost > self._num_lost_told:
                count = num_lost - self._num_lost_told
                self._file.write(_encode({"time": rfc3339_now(), "event": "lines_lost", "lines": count}))
                self._num_lost_told = num_lost
            self._file.write(line)
        except OSError as error:
            if not self._failing:
                logger.error("the audit log %s can't be written: %s", self._path, error.strerror)
            self._failing = True
            return False
        if self._failing:
            logger.warning("the audit log %s is written again", self._path)
        self._failing = False
        return True

    def _wait_to_try_again(self) -> bool:
        """True: no time is left for that."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closing, timeout=RETRY_SECONDS)

    def _give_up(self) -> None:
        with self._changed:
            self._num_lost += len(self._queue)
            self._queue.clear()
        logger.error("the audit log %s lost %d lines", self._path, self._num_lost - self._num_lost_told)
        self._file.close()


class RotatingFile:
    """Appends whole lines, or nothing. A file that was moved or deleted is made anew.

    :raises OSError: from each method: the file can't be had or written
    """

    def __init__(self, path: Path, max_bytes: int, num_files: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._num_files = num_files
        self._file = -1
        self._open()

    def write(self, line: bytes) -> None:
        self._open_anew_if_gone()
        size = os.fstat(self._file).st_size
        if size and size + len(line) > self._max_bytes:
            self._rotate()
            size = 0
        num_written = os.write(self._file, line)
        if num_written < len(line):  # the disk is full
            os.ftruncate(self._file, size)
            raise OSError(None, "there was no room for the whole line")

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe would wait for a reader
        file = os.open(self._path, flags, MODE)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise OSError(None, "it is not a plain file")
            os.fchmod(file, MODE)
        except OSError:
            os.close(file)
            raise
        self._file = file

    def _open_anew_if_gone(self) -> None:
        try:
            if self._file >= 0 and os.path.samestat(os.stat(self._path), os.fstat(self._file)):
                return
        except FileNotFoundError:
            pass
        self.close()
        self._open()

    def _rotate(self) -> None:
        self.close()
        for number in range(self._num_files - 1, 0, -1):
            younger = self._numbered(number - 1)
            if younger.exists():
                younger.replace(self._numbered(number))
        self._open()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


def rfc3339_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _encode(members: Mapping[str, object]) -> bytes:
    """In ASCII: no line end, nothing that a terminal obeys, and no half character passes unescaped."""
    return json.dumps(members, separators=(",", ":")).encode("ascii") + b"\n"
