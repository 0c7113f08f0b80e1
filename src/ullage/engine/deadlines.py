"""When requests must have ended at the latest. A heap: asking who is late costs nothing while nobody is."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping

from ullage.engine.request import Request

MOST_ENDED = 64
"""Entries of requests that ended in time may be as many as those that didn't, and so many more."""


class Deadlines:
    """Of all requests of a scheduler.

    :param requests: those that haven't ended; the scheduler's own, looked at only
    """

    def __init__(self, requests: Mapping[int, Request]) -> None:
        self._requests = requests
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: Request) -> None:
        if request.deadline == math.inf:
            return
        if len(self._heap) > 2 * len(self._requests) + MOST_ENDED:
            self._heap = [entry for entry in self._heap if entry[1] in self._requests]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (request.deadline, request.request_id))

    def take_expired(self, now: float) -> list[Request]:
        """Those whose time is up, each once."""
        expired: list[Request] = []
        while self._heap and self._heap[0][0] <= now:
            request = self._requests.get(heapq.heappop(self._heap)[1])
            if request is not None:
                expired.append(request)
        return expired
