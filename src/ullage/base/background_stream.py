"""A stream that never makes its writer wait: a supervisor that stops reading the log must not stop the server."""

from __future__ import annotations

import atexit
import logging
import queue
import threading
from typing import TextIO

MAX_WAITING = 10_000
"""Texts that wait to be written; what goes beyond is lost, and that is logged."""
CLOSE_SECONDS = 1.0

logger = logging.getLogger(__name__)


class BackgroundStream:
    """Writes on a thread of its own.

    :param stream: what is written to; may block
    """

    def __init__(self, stream: TextIO, max_waiting: int = MAX_WAITING) -> None:
        self._stream = stream
        self._waiting: queue.Queue[str | None] = queue.Queue(max_waiting)
        self._num_lost = 0
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def write(self, text: str) -> int:
        try:
            self._waiting.put_nowait(text)
        except queue.Full:
            self._num_lost += 1
        return len(text)

    def flush(self) -> None:
        """Nothing to do: what is written is on its way."""

    def close(self) -> None:
        """Waits for what is on its way, but not for long. Idempotent; the stream itself stays open."""
        atexit.unregister(self.close)
        try:
            self._waiting.put(None, timeout=CLOSE_SECONDS)
        except queue.Full:
            return
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while (text := self._waiting.get()) is not None:
            try:
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError):  # nobody reads any more, or it was closed
                continue
            if self._num_lost:
                num_lost, self._num_lost = self._num_lost, 0
                logger.warning("%d lines of the log were lost: nobody read them", num_lost)
