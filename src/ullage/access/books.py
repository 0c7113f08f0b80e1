"""What one tenant holds and has used: the counts behind its limits, and the one rule that decides.

**Never more than the limit, in any minute.** What a request may use counts in full from its start to its end; what it
did use counts for one window more. Take any window of 60 s and the last start in or before it: every request that uses
tokens in the window is running at that start or ended less than a window before it, so all of them are counted there
together, at no less than they use. The sum was within the limit then; hence the window is, wherever it lies. The past
is kept by whole seconds, and a second counts until the last instant in it is a window old.

**Quotas** count what ended in a day or month, and all that runs: a request that spans midnight is counted in the day in
which it ends, and was counted as running by every other one that began on that day.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NoReturn

import msgpack

from ullage.access.limits import TenantLimits
from ullage.base.errors import InvalidRequestError, QuotaExceededError, RateLimitError

WINDOW_SECONDS = 60
LEASE_SECONDS = 60.0
"""What a server holds counts as used in full when nothing was heard of it for so long."""
REMEMBERED_SECONDS = 3600.0
"""How long a server's last change is remembered: long after any try to repeat it."""
SOON_SECONDS = 1.0
"""When a request that waits for another's end may try again: nobody knows when that will be."""


@dataclass(slots=True)
class Holding:
    """What runs on one server."""

    num_requests: int
    num_tokens: int
    """Reserved."""
    opened_at: float
    """Tells it from one of the same server that was given up before."""
    heard_at: float


@dataclass(frozen=True, slots=True)
class Reserved:
    """What was counted for one request when it began."""

    num_tokens: int
    began_at: float
    opened_at: float
    """Of the holding in which it is counted."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What is left of the minute, for the ``x-ratelimit`` headers. None: there is no such limit."""

    max_requests: int | None
    requests_left: int | None
    requests_reset_seconds: float
    """Until all of it is there again, should nothing be asked for."""
    max_tokens: int | None
    tokens_left: int | None
    tokens_reset_seconds: float


@dataclass(slots=True)
class Books:
    """One tenant's counts, for all servers that share its limits. Times are seconds since 1970."""

    holdings: dict[str, Holding] = field(default_factory=dict)
    """By server."""
    starts: dict[int, int] = field(default_factory=dict)
    """Second -> requests that began in it; the oldest first, here and below."""
    ends: dict[int, int] = field(default_factory=dict)
    """Second -> tokens that the requests which ended in it used."""
    periods: dict[str, int] = field(default_factory=dict)
    """``2026-12-01`` and ``2026-12`` -> tokens used; only of the day and month of the last look."""
    changes: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By server: the number of the last change it made, and when."""

    # ── what happens to a request ──

    def reserve(self, limits: TenantLimits, server: str, num_tokens: int, now: float) -> Reserved:
        """Counts a request that begins; a refused one counts nothing.

        :param num_tokens: the most it can use, prompt included
        :raises InvalidRequestError: it asks for more than the tenant can ever be given
        :raises RateLimitError: no room now
        :raises QuotaExceededError: no room before the next day or month
        """
        if limits.most_tokens is not None and num_tokens > limits.most_tokens:
            raise InvalidRequestError(
                f"the request may use {num_tokens} tokens, but this tenant is given at most {limits.most_tokens}",
                param="max_tokens",
                hint="ask for less with max_tokens",
            )
        self.check(limits, now, num_tokens)
        holding = self.holdings.setdefault(server, Holding(0, 0, now, now))
        holding.num_requests += 1
        holding.num_tokens += num_tokens
        holding.heard_at = now
        self.starts[int(now)] = self.starts.get(int(now), 0) + 1
        return Reserved(num_tokens, now, holding.opened_at)

    def check(self, limits: TenantLimits, now: float, num_tokens: int = 1) -> None:
        """Whether a request of so many tokens may begin now.

        :raises RateLimitError, QuotaExceededError: it may not
        """
        self.look(now)
        most = limits.concurrent_requests
        if most is not None and self.num_running >= most:
            self._refuse(limits, now, f"{most} requests at once are allowed, and so many run", SOON_SECONDS)
        most = limits.requests_per_minute
        if most is not None and sum(self.starts.values()) >= most:
            seconds = _seconds_until(self.starts, sum(self.starts.values()) - most + 1, now)
            self._refuse(limits, now, f"{most} requests a minute are allowed, and so many began", seconds)
        most = limits.tokens_per_minute
        if most is not None and (left := most - self.num_minute_tokens) < num_tokens:
            seconds = _seconds_until(self.ends, num_tokens - left, now)
            text = f"{most} tokens a minute are allowed, {max(0, left)} are left, {num_tokens} may be needed"
            self._refuse(limits, now, text, seconds)
        for period, most in _periods(now, limits):
            self._check_quota(limits, period, most, num_tokens, now)

    def settle(self, server: str, reserved: Reserved, num_used: int, now: float) -> None:
        """A request ended, in whatever way."""
        self.look(now)
        if self._give_back(server, reserved, now):
            self._use(num_used, now)

    def release(self, server: str, reserved: Reserved, now: float) -> None:
        """A reserved request was never begun: as if it hadn't been asked for."""
        self.look(now)
        if self._give_back(server, reserved, now) and int(reserved.began_at) in self.starts:
            self.starts[int(reserved.began_at)] -= 1

    def renew(self, server: str, num_requests: int, num_tokens: int, now: float) -> None:
        """The server is still there, and says what it holds."""
        self.look(now)
        if server in self.holdings:
            holding = self.holdings[server]
            holding.num_requests, holding.num_tokens, holding.heard_at = num_requests, num_tokens, now

    def has_change(self, server: str, number: int) -> bool:
        """Whether the server made this change already, and never learned of it."""
        return self.changes.get(server, (-1, 0.0))[0] >= number

    def note_change(self, server: str, number: int, now: float) -> None:
        """:param number: of each server greater than that of the one before"""
        self.changes[server] = (number, now)

    # ── what the counts say ──

    @property
    def num_running(self) -> int:
        return sum(holding.num_requests for holding in self.holdings.values())

    @property
    def num_reserved_tokens(self) -> int:
        return sum(holding.num_tokens for holding in self.holdings.values())

    @property
    def num_minute_tokens(self) -> int:
        """All that counts against the minute."""
        return self.num_reserved_tokens + sum(self.ends.values())

    def standing(self, limits: TenantLimits, now: float) -> Standing:
        self.look(now)
        requests, tokens = limits.requests_per_minute, limits.tokens_per_minute
        return Standing(
            requests,
            None if requests is None else max(0, requests - sum(self.starts.values())),
            _seconds_until(self.starts, sum(self.starts.values()), now) if self.starts else 0.0,
            tokens,
            None if tokens is None else max(0, tokens - self.num_minute_tokens),
            _seconds_until(self.ends, self.num_minute_tokens, now) if self.num_minute_tokens else 0.0,
        )

    def look(self, now: float) -> None:
        """Forgets what no limit counts any more, and gives up servers that are gone."""
        for server, holding in tuple(self.holdings.items()):
            if now - holding.heard_at >= LEASE_SECONDS:
                del self.holdings[server]
                self._use(holding.num_tokens, now)
        oldest = now - WINDOW_SECONDS - 1
        for seconds in (self.starts, self.ends):
            for second in [second for second in seconds if second <= oldest]:
                del seconds[second]
        self.changes = {name: last for name, last in self.changes.items() if now - last[1] < REMEMBERED_SECONDS}
        present = period_names(now)
        self.periods = {name: count for name, count in self.periods.items() if name in present}

    # ── as bytes ──

    def encode(self) -> bytes:
        holdings = {
            name: (held.num_requests, held.num_tokens, held.opened_at, held.heard_at)
            for name, held in self.holdings.items()
        }
        encoded: bytes = msgpack.packb((holdings, self.starts, self.ends, self.periods, self.changes))
        return encoded

    @classmethod
    def decode(cls, data: bytes) -> Books:
        """:raises ValueError: it isn't one"""
        holdings, starts, ends, periods, changes = msgpack.unpackb(data, strict_map_key=False, use_list=False)
        return cls({name: Holding(*values) for name, values in holdings.items()}, starts, ends, periods, changes)

    # ── parts ──

    def _use(self, num_tokens: int, now: float) -> None:
        if num_tokens:
            self.ends[int(now)] = self.ends.get(int(now), 0) + num_tokens
            for name in period_names(now):
                self.periods[name] = self.periods.get(name, 0) + num_tokens

    def _give_back(self, server: str, reserved: Reserved, now: float) -> bool:
        """False: the server was given up meanwhile, and its requests were counted in full."""
        holding = self.holdings.get(server)
        if holding is None or holding.opened_at != reserved.opened_at:
            return False
        holding.num_requests -= 1
        holding.num_tokens -= reserved.num_tokens
        holding.heard_at = now
        if holding.num_requests == 0:
            del self.holdings[server]
        return True

    def _check_quota(self, limits: TenantLimits, period: str, most: int, num_tokens: int, now: float) -> None:
        used = self.periods.get(period, 0)
        if used + num_tokens > most:
            raise QuotaExceededError(
                f"the quota of {period} is {most} tokens, {max(0, most - used)} are left, {num_tokens} may be needed",
                hint="it is counted by UTC",
            )
        if used + self.num_reserved_tokens + num_tokens > most:
            text = f"what is left of the quota of {period} may be needed by requests that run"
            self._refuse(limits, now, text, SOON_SECONDS)

    def _refuse(self, limits: TenantLimits, now: float, text: str, seconds: float) -> NoReturn:
        standing = rate_limit_headers(self.standing(limits, now))
        raise RateLimitError(text, retry_after_seconds=seconds, headers=standing)


def rate_limit_headers(standing: Standing) -> dict[str, str]:
    """``x-ratelimit-{limit,remaining,reset}-{requests,tokens}``, for the limits there are."""
    headers: dict[str, str] = {}
    for kind, most, left, seconds in (
        ("requests", standing.max_requests, standing.requests_left, standing.requests_reset_seconds),
        ("tokens", standing.max_tokens, standing.tokens_left, standing.tokens_reset_seconds),
    ):
        if most is not None:
            headers[f"x-ratelimit-limit-{kind}"] = str(most)
            headers[f"x-ratelimit-remaining-{kind}"] = str(left)
            headers[f"x-ratelimit-reset-{kind}"] = f"{seconds:.3f}s"
    return headers


def period_names(now: float) -> tuple[str, str]:
    """Of the day and of the month."""
    today = datetime.fromtimestamp(now, UTC).date().isoformat()
    return today, today[:7]


def _periods(now: float, limits: TenantLimits) -> list[tuple[str, int]]:
    quotas = zip(period_names(now), (limits.tokens_per_day, limits.tokens_per_month), strict=True)
    return [(name, most) for name, most in quotas if most is not None]


def _seconds_until(counts: dict[int, int], num_gone: int, now: float) -> float:
    """Until so much of the oldest has left the window; a whole window when that depends on what still runs."""
    for second, count in sorted(counts.items()):
        num_gone -= count
        if num_gone <= 0:
            return second + 1 + WINDOW_SECONDS - now
    return float(WINDOW_SECONDS)
