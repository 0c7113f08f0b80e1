"""The books of tokens a minute, against a plain count over every window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.access.token_allowance import WINDOW_SECONDS, TokenAllowance
from ullage.base.errors import InvalidRequestError, RateLimitError

LIMIT = 100
CLIENTS = range(100)
steps = st.lists(st.tuples(st.integers(0, 25), st.sampled_from(CLIENTS), st.integers(1, 60)), max_size=200)


@given(steps)
def test_no_window_ever_holds_more_than_the_limit_with_a_hundred_clients(steps):
    now = 0.0
    allowance = TokenAllowance(LIMIT, lambda: now)
    running: dict[int, list[int]] = {}
    used: list[tuple[float, int]] = []
    for wait, client, num_tokens in steps:
        now += wait
        if client not in running:
            try:
                allowance.reserve(str(client), num_tokens)
            except RateLimitError:
                continue
            running[client] = [num_tokens, 0]
        elif running[client][1] + num_tokens <= running[client][0]:
            running[client][1] += num_tokens
            used.append((now, num_tokens))
        else:
            allowance.settle(str(client), running.pop(client)[1])
    for start, _ in used:
        assert sum(tokens for at, tokens in used if start <= at < start + WINDOW_SECONDS) <= LIMIT


def test_a_refused_request_counts_nothing_and_is_told_when_there_is_room():
    now = 0.0
    allowance = TokenAllowance(LIMIT, lambda: now)
    allowance.reserve("a", 60)
    allowance.settle("a", 50)
    now = 10.0
    with pytest.raises(RateLimitError) as refused:
        allowance.reserve("b", 60)
    assert refused.value.retry_after_seconds == 50.0
    assert allowance.num_left == 50


def test_an_ended_request_is_settled_once():
    allowance = TokenAllowance(LIMIT, lambda: 0.0)
    allowance.reserve("a", 60)
    allowance.settle("a", 10)
    allowance.settle("a", 0)
    assert allowance.num_left == 90


def test_what_can_never_fit_is_refused_for_good():
    with pytest.raises(InvalidRequestError):
        TokenAllowance(LIMIT, lambda: 0.0).reserve("a", LIMIT + 1)
