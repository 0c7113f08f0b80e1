"""How long a client that reads slowly is waited for."""

from __future__ import annotations


class Patience:
    """A client's credit of time. Waiting for it uses the credit up; what it takes gives some back, up to the whole.

    So a client that takes nothing has ``whole_seconds``, one that takes more than ``bytes_per_second`` has for ever,
    and nobody keeps a place by taking a little now and then.
    """

    def __init__(self, whole_seconds: float, bytes_per_second: float) -> None:
        self._whole_seconds = whole_seconds
        self._bytes_per_second = bytes_per_second
        self._num_taken_bytes = 0
        self._waiting_since: float | None = None
        self.left_seconds = whole_seconds

    def renew(self) -> None:
        self.left_seconds = self._whole_seconds

    def wait(self, now: float, num_taken_bytes: int) -> None:
        """From now on we wait, or still do.

        :param now: seconds of a clock that never goes back
        :param num_taken_bytes: all that the client has taken so far
        """
        self._settle(now, num_taken_bytes)
        self._waiting_since = now

    def go_on(self, now: float, num_taken_bytes: int) -> None:
        """We wait no longer."""
        self._settle(now, num_taken_bytes)
        self._waiting_since = None

    def _settle(self, now: float, num_taken_bytes: int) -> None:
        given = (num_taken_bytes - self._num_taken_bytes) / self._bytes_per_second
        used = 0.0 if self._waiting_since is None else now - self._waiting_since
        self.left_seconds = min(self._whole_seconds, self.left_seconds + given - used)
        self._num_taken_bytes = num_taken_bytes
