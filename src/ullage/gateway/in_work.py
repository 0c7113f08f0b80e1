"""What is in work now: counted, bounded, and cut off at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from ullage.base.errors import QueueFullError, ServerStoppingError

FULL_RETRY_SECONDS = 1.0
STOP_RETRY_SECONDS = 5.0


class InWork:
    """One per gateway. Belongs to the event loop."""

    def __init__(self, max_requests: int) -> None:
        self.num_requests = 0
        self.stopping = False
        self._max_requests = max_requests
        self._is_cut_off = False
        self._clocks: set[asyncio.Timeout] = set()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Around the life of one request.

        :raises ServerStoppingError, QueueFullError: it isn't taken
        """
        if self.stopping:
            raise _stopping()
        if self.num_requests >= self._max_requests:
            message = f"{self._max_requests} requests are in work already"
            raise QueueFullError(message, retry_after_seconds=FULL_RETRY_SECONDS)
        self.num_requests += 1
        try:
            yield
        finally:
            self.num_requests -= 1

    @asynccontextmanager
    async def within(self, seconds: float, too_late: Exception) -> AsyncIterator[None]:
        """Around every wait of a request.

        :raises Exception: ``too_late`` after so many seconds; ServerStoppingError when everything is cut off
        """
        try:
            async with asyncio.timeout(0 if self._is_cut_off else seconds) as clock:
                self._clocks.add(clock)
                try:
                    yield
                finally:
                    self._clocks.discard(clock)
        except TimeoutError:
            raise _stopping() if self._is_cut_off else too_late from None

    def cut_off(self) -> None:
        """All waits, now and from now on, end with ``ServerStoppingError``."""
        self._is_cut_off = True
        for clock in self._clocks:
            if not clock.expired():  # one whose wait is just ending can't be set again
                clock.reschedule(asyncio.get_running_loop().time())


def _stopping() -> ServerStoppingError:
    return ServerStoppingError("the gateway is stopping", retry_after_seconds=STOP_RETRY_SECONDS)
