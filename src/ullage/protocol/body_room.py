"""Counts the bytes of all request bodies that are held at one time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ullage.base.errors import QueueFullError

FULL_RETRY_SECONDS = 1.0


class BodyRoom:
    """One per service. Bodies come in pieces, so each takes room as it grows, and gives all of it back at once."""

    def __init__(self, max_bytes: int) -> None:
        self._free_bytes = max_bytes

    @contextmanager
    def body(self) -> Iterator[Callable[[int], None]]:
        """Around the life of one body: gives what must be told of each of its pieces.

        :raises QueueFullError: from that call, when there is no room for the piece
        """
        taken_bytes = 0

        def take(num_bytes: int) -> None:
            nonlocal taken_bytes
            if num_bytes > self._free_bytes:
                message = "too many request bodies are being read already"
                raise QueueFullError(message, retry_after_seconds=FULL_RETRY_SECONDS)
            self._free_bytes -= num_bytes
            taken_bytes += num_bytes

        try:
            yield take
        finally:
            self._free_bytes += taken_bytes
