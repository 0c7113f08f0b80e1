"""A tenant's books, against a plain count over every window and every day."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.access.books import LEASE_SECONDS, WINDOW_SECONDS, Books, Reserved, rate_limit_headers
from ullage.access.limits import TenantLimits
from ullage.base.errors import InvalidRequestError, QuotaExceededError, RateLimitError

LIMIT, MAX_REQUESTS, AT_ONCE = 100, 7, 3
NOON = datetime(2026, 12, 1, 12, tzinfo=UTC).timestamp()
steps = st.lists(
    st.tuples(st.floats(0, 25), st.sampled_from(range(20)), st.integers(1, 60), st.sampled_from("ab")), max_size=150
)


@given(steps)
def test_no_window_holds_more_requests_or_tokens_than_the_limits_and_no_more_run_at_once(steps):
    limits = TenantLimits(requests_per_minute=MAX_REQUESTS, tokens_per_minute=LIMIT, concurrent_requests=AT_ONCE)
    now, books = NOON, Books()
    running: dict[int, tuple[str, Reserved, int]] = {}
    used: list[tuple[float, int]] = []
    began: list[float] = []
    waits: list[float] = []
    for wait, client, num_tokens, server in steps:
        now += wait
        books = Books.decode(books.encode())
        for holder in "ab":
            held = [reserved.num_tokens for server_of, reserved, _ in running.values() if server_of == holder]
            books.renew(holder, len(held), sum(held), now)
        if client not in running:
            try:
                running[client] = (server, books.reserve(limits, server, num_tokens, now), 0)
            except RateLimitError as error:
                waits.append(error.retry_after_seconds)
            else:
                began.append(now)
        elif running[client][2] + num_tokens <= running[client][1].num_tokens:
            server, reserved, num_used = running[client]
            running[client] = (server, reserved, num_used + num_tokens)
            used.append((now, num_tokens))
        else:
            server, reserved, num_used = running.pop(client)
            books.settle(server, reserved, num_used, now)
        assert len(running) <= AT_ONCE
    for start, _ in used:
        assert sum(tokens for at, tokens in used if start <= at < start + WINDOW_SECONDS) <= LIMIT
    assert all(0 < wait <= WINDOW_SECONDS + 1 for wait in waits)
    for start in began:
        assert sum(start <= at < start + WINDOW_SECONDS for at in began) <= MAX_REQUESTS


@given(steps)
def test_no_day_ends_with_more_tokens_than_its_quota_and_midnight_gives_a_new_one(steps):
    limits = TenantLimits(tokens_per_day=LIMIT)
    now, books = NOON, Books()
    running: list[Reserved] = []
    used: dict[str, int] = {}
    for wait, action, num_tokens, _ in steps:
        now += wait * 1000
        for holding in books.holdings.values():
            holding.heard_at = now  # the server was there all the time
        if action % 2 or not running:
            try:
                running.append(books.reserve(limits, "a", num_tokens, now))
            except (RateLimitError, QuotaExceededError):
                continue
        else:
            reserved = running.pop(0)
            num_used = min(num_tokens, reserved.num_tokens)
            books.settle("a", reserved, num_used, now)
            day = datetime.fromtimestamp(now, UTC).date().isoformat()
            used[day] = used.get(day, 0) + num_used
            assert books.periods.get(day, 0) == used[day]
    assert all(count <= LIMIT for count in used.values())


def test_a_refused_request_counts_nothing_and_is_told_when_there_is_room():
    limits, books = TenantLimits(tokens_per_minute=100), Books()
    books.settle("a", books.reserve(limits, "a", 60, NOON), 50, NOON)
    before = books.encode()
    with pytest.raises(RateLimitError) as refused:
        books.reserve(limits, "a", 60, NOON + 10)
    assert books.encode() == before
    assert refused.value.retry_after_seconds == WINDOW_SECONDS + 1 - 10
    assert refused.value.headers["x-ratelimit-remaining-tokens"] == "50"
    books.reserve(limits, "a", 60, NOON + 10 + refused.value.retry_after_seconds)


def test_what_was_released_costs_neither_a_request_nor_tokens():
    limits, books = TenantLimits(requests_per_minute=1, tokens_per_minute=10), Books()
    books.release("a", books.reserve(limits, "a", 10, NOON), NOON)
    books.reserve(limits, "a", 10, NOON)
    with pytest.raises(RateLimitError):
        books.reserve(limits, "a", 1, NOON)


@pytest.mark.parametrize("limits", [TenantLimits(tokens_per_minute=100), TenantLimits(tokens_per_month=100)])
def test_what_can_never_fit_is_refused_for_good(limits):
    with pytest.raises(InvalidRequestError, match="at most 100") as refused:
        Books().reserve(limits, "a", 101, NOON)
    assert refused.value.param == "max_tokens"


def test_a_server_that_is_gone_pays_all_it_held_and_what_it_says_later_changes_nothing():
    limits, books = TenantLimits(tokens_per_minute=100, concurrent_requests=1), Books()
    gone = books.reserve(limits, "gone", 70, NOON)
    with pytest.raises(RateLimitError):
        books.reserve(limits, "b", 10, NOON + LEASE_SECONDS - 1)
    reserved = books.reserve(limits, "b", 10, NOON + LEASE_SECONDS)
    books.settle("gone", gone, 5, NOON + LEASE_SECONDS)
    assert books.num_minute_tokens == 80
    books.settle("b", reserved, 10, NOON + LEASE_SECONDS)
    again = books.reserve(limits, "gone", 20, NOON + LEASE_SECONDS + 1)
    books.settle("gone", gone, 5, NOON + LEASE_SECONDS + 1)
    assert books.num_minute_tokens == 100
    books.settle("gone", again, 0, NOON + LEASE_SECONDS + 1)
    assert books.num_minute_tokens == 80


def test_what_a_server_says_it_holds_puts_right_what_was_counted_twice():
    limits, books = TenantLimits(tokens_per_minute=100), Books()
    books.reserve(limits, "a", 30, NOON)
    kept = books.reserve(limits, "a", 30, NOON)
    books.renew("a", 1, 30, NOON + 1)
    assert (books.num_running, books.num_reserved_tokens) == (1, 30)
    books.settle("a", kept, 10, NOON + 2)
    assert (books.num_running, books.num_minute_tokens) == (0, 10)


def test_a_quota_that_running_requests_may_use_up_is_no_quota_used_up():
    limits, books = TenantLimits(tokens_per_day=100), Books()
    reserved = books.reserve(limits, "a", 80, NOON)
    with pytest.raises(RateLimitError, match="may be needed by requests that run"):
        books.reserve(limits, "a", 30, NOON)
    books.settle("a", reserved, 80, NOON)
    with pytest.raises(QuotaExceededError, match=r"2026-12-01 is 100 tokens, 20 are left"):
        books.reserve(limits, "a", 30, NOON)


def test_books_of_a_busy_tenant_stay_small():
    limits, books = TenantLimits(), Books()
    for i in range(20_000):
        now = NOON + i * 0.01
        books.settle("a", books.reserve(limits, "a", 100, now), 50, now)
    assert len(books.encode()) < 2000


def test_the_headers_tell_of_the_limits_there_are():
    limits, books = TenantLimits(requests_per_minute=5), Books()
    books.settle("a", books.reserve(limits, "a", 10, NOON), 10, NOON + 0.5)
    assert rate_limit_headers(books.standing(limits, NOON + 1.5)) == {
        "x-ratelimit-limit-requests": "5",
        "x-ratelimit-remaining-requests": "4",
        "x-ratelimit-reset-requests": "59.500s",
    }
    assert rate_limit_headers(Books().standing(TenantLimits(), NOON)) == {}
