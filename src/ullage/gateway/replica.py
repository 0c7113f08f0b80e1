"""What the gateway knows of one replica, and whether requests go there. No input or output: it is told everything.

             probe fails, connection refused
       up ────────────────────────────────────▶ down ──probe passes──▶ warming ──slow_start_seconds──▶ up
       │ ▲                                                                ▲
       │ └── (all but ``down`` and ``ejected`` are in rotation)           │ a request succeeds
       └──requests fail──▶ ejected ──ejection_seconds──▶ trial ───────────┘
                              ▲                            │ one request at a time
                              └──a request fails: longer───┘

A replica can be down and ejected at once: a passing probe says nothing of how requests fare.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal

from ullage.gateway.config import GatewayConfig
from ullage.gateway.replica_file import ReplicaConfig

State = Literal["unknown", "up", "down", "ejected", "trial", "warming"]
STATES: tuple[State, ...] = ("unknown", "up", "down", "ejected", "trial", "warming")
Outcome = Literal["ok", "refused", "busy", "abandoned", "not_taken", "failed", "unreachable", "timeout", "cut"]
OUTCOMES: tuple[Outcome, ...] = (
    "ok",  # a whole answer
    "refused",  # a whole answer that finds fault with the request: 4xx, or its own deadline
    "busy",  # 429
    "abandoned",  # the client left, or the gateway stops
    "not_taken",  # 503 with Retry-After: draining or starting
    "failed",  # 5xx, or a stream that ended with an error of the replica's
    "unreachable",  # no connection, or one lost before an answer began
    "timeout",  # silent for too long
    "cut",  # an answer that began and broke off
)
SUCCESSES = frozenset({"ok", "refused"})
FAILURES = frozenset({"failed", "unreachable", "timeout", "cut"})
FIRST_SHARE = 0.1
"""Of its weight, on trial and at the beginning of the slow start."""
MAX_REMEMBERED = 1000


class Replica:
    """Belongs to the event loop.

    :param clock: seconds, never going back
    """

    def __init__(self, config: ReplicaConfig, rules: GatewayConfig, clock: Callable[[], float]) -> None:
        self.config = config
        self.num_outstanding = 0
        self.counts: dict[Outcome, int] = dict.fromkeys(OUTCOMES, 0)
        self.reason = "not asked yet"
        self._rules = rules
        self._clock = clock
        self._is_healthy: bool | None = None
        self._num_silent_probes = 0
        self._num_failures_in_a_row = 0
        self._recent: deque[tuple[float, bool]] = deque(maxlen=MAX_REMEMBERED)
        self._ejected_until: float | None = None
        self._num_ejections = 0  # since it was last up
        self._warm_since: float | None = None

    @property
    def state(self) -> State:
        now = self._clock()
        if self._is_healthy is None:
            return "unknown"
        if not self._is_healthy:
            return "down"
        if self._ejected_until is not None:
            return "ejected" if now < self._ejected_until else "trial"
        if self._warm_since is not None and now - self._warm_since < self._rules.slow_start_seconds:
            return "warming"
        return "up"

    @property
    def weight(self) -> float:
        """Its weight now; 0 when no request may go there."""
        state = self.state
        if state == "up":
            return self.config.weight
        if state == "warming":
            assert self._warm_since is not None
            share = (self._clock() - self._warm_since) / self._rules.slow_start_seconds
            return self.config.weight * max(FIRST_SHARE, share)
        if state == "trial" and self.num_outstanding == 0:
            return self.config.weight * FIRST_SHARE
        return 0.0

    def probe_passed(self) -> None:
        if self._is_healthy is False:
            self._warm_since = self._clock()
        self._is_healthy = True
        self._num_silent_probes = 0
        if self._ejected_until is None:
            self.reason = "ready"

    def probe_failed(self, reason: str) -> None:
        """It says that it isn't ready, or can't be reached."""
        self._is_healthy = False
        self._num_silent_probes = 0
        self.reason = reason

    def probe_was_silent(self) -> None:
        """No answer came in time: that may happen once."""
        self._num_silent_probes += 1
        if self._num_silent_probes >= self._rules.health_failures or self._is_healthy is None:
            self._is_healthy = False
            self.reason = f"{self._num_silent_probes} times in a row it did not say whether it is ready"

    def request_began(self) -> Turn:
        self.num_outstanding += 1
        return Turn(self)

    def request_ended(self, outcome: Outcome, reason: str) -> None:
        """Called by its ``Turn``."""
        self.num_outstanding -= 1
        self.counts[outcome] += 1
        if outcome in SUCCESSES:
            self._succeeded()
        elif outcome in FAILURES:
            self._failed(reason)

    def _succeeded(self) -> None:
        state = self.state
        self._recent.append((self._clock(), False))
        self._num_failures_in_a_row = 0
        if state == "trial":
            self._ejected_until = None
            self._warm_since = self._clock()
            self.reason = "ready"
        elif state == "up":
            self._num_ejections = 0

    def _failed(self, reason: str) -> None:
        state = self.state
        self._recent.append((self._clock(), True))
        self._num_failures_in_a_row += 1
        if state == "trial" or (self._ejected_until is None and self._fails_too_often()):
            rules = self._rules
            seconds = min(rules.ejection_seconds * 2.0 ** min(self._num_ejections, 60), rules.max_ejection_seconds)
            self._ejected_until = self._clock() + seconds
            self._num_ejections += 1
            self._num_failures_in_a_row = 0
            self._recent.clear()
            self.reason = f"ejected for {seconds:g} s, lastly because {reason}"

    def _fails_too_often(self) -> bool:
        rules = self._rules
        if self._num_failures_in_a_row >= rules.ejection_failures:
            return True
        since = self._clock() - rules.error_window_seconds
        while self._recent and self._recent[0][0] < since:
            self._recent.popleft()
        num_failures = sum(failed for _, failed in self._recent)
        return num_failures >= max(rules.ejection_failures, rules.ejection_error_rate * len(self._recent))


class Turn:
    """One request's time with a replica. It ends once, with the first outcome that is told."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.outcome: Outcome | None = None

    def end(self, outcome: Outcome, reason: str = "") -> None:
        if self.outcome is None:
            self.outcome = outcome
            self.replica.request_ended(outcome, reason)
