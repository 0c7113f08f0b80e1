"""Tokens a minute of one tenant, kept to the token.

What a request may use counts in full from its start to its end; what it did use counts for one window more. Take any
window of 60 s and the last start in or before it: every request that uses tokens in the window is running at that
start or ended less than a window before it, so all of them are counted there together, at no less than they use.
The sum was within the limit then; hence the window is, wherever it lies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ullage.base.errors import InvalidRequestError, RateLimitError

WINDOW_SECONDS = 60.0


class TokenAllowance:
    """One tenant's books. Used from one thread.

    :param clock: seconds, never going back
    """

    def __init__(self, tokens_per_minute: int, clock: Callable[[], float]) -> None:
        self._limit = tokens_per_minute
        self._clock = clock
        self._reserved: dict[str, int] = {}
        self._used: deque[tuple[float, int]] = deque()
        """(end of the request, tokens), the oldest first."""
        self._num_counted = 0

    def reserve(self, request_id: str, num_tokens: int) -> None:
        """Counts a request that starts now; a refused one counts nothing.

        :param num_tokens: the most it can use, prompt included
        :raises InvalidRequestError: more than a minute's allowance: it could never start
        :raises RateLimitError: no room now
        """
        if num_tokens > self._limit:
            raise InvalidRequestError(
                f"the request may use {num_tokens} tokens, but a minute's allowance is {self._limit}",
                hint="ask for less with max_tokens",
            )
        assert request_id not in self._reserved, "a request reserves once"
        self._forget_old()
        if self._num_counted + num_tokens > self._limit:
            raise RateLimitError(
                f"{self._limit} tokens a minute are allowed, of which {self.num_left} are left",
                retry_after_seconds=self._seconds_until_room(num_tokens),
            )
        self._reserved[request_id] = num_tokens
        self._num_counted += num_tokens

    def settle(self, request_id: str, num_used: int) -> None:
        """Counts what a request did use, however it ended. A second time does nothing."""
        num_reserved = self._reserved.pop(request_id, None)
        if num_reserved is None:
            return
        assert 0 <= num_used <= num_reserved, "a request used more than it reserved"
        self._num_counted -= num_reserved - num_used
        if num_used:
            self._used.append((self._clock(), num_used))

    @property
    def num_left(self) -> int:
        """Tokens that may be reserved now."""
        self._forget_old()
        return self._limit - self._num_counted

    def _forget_old(self) -> None:
        oldest = self._clock() - WINDOW_SECONDS
        while self._used and self._used[0][0] < oldest:
            self._num_counted -= self._used.popleft()[1]

    def _seconds_until_room(self, num_tokens: int) -> float:
        """A full window where it depends on requests that still run."""
        num_left = self.num_left
        for ended_at, num_used in self._used:
            num_left += num_used
            if num_left >= num_tokens:
                return ended_at + WINDOW_SECONDS - self._clock()
        return WINDOW_SECONDS
