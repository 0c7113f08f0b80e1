"""The oracle must notice: each fault that it is there for changes the next token."""

from __future__ import annotations

import pytest

from ullage.base.errors import EngineError
from ullage.engine.fake_runner import FakeRunner
from ullage.engine.sampling_params import SamplingParams
from ullage.engine.step import RELEASED_BLOCK, ScheduledRequest, ScheduledStep

PROMPT = [1, 2, 3, 4, 5, 6]


def make_runner(**options: object) -> FakeRunner:
    return FakeRunner(**{"num_blocks": 6, "block_size": 4, "vocab_size": 1000, **options})


def scheduled(
    token_ids: list[int], *block_tables: list[int], position: int = 0, banned_token_ids: tuple[int, ...] = ()
) -> ScheduledRequest:
    return ScheduledRequest(
        request_id=0,
        token_ids=token_ids,
        num_computed_tokens=position,
        block_tables=block_tables,
        sampling=SamplingParams(),
        seed=0,
        needs_logits=True,
        history=token_ids,
        num_prompt_tokens=len(token_ids),
        banned_token_ids=banned_token_ids,
    )


def next_token(runner: FakeRunner, *requests: ScheduledRequest) -> int:
    return runner.execute(ScheduledStep(requests))[-1].token_id


def test_the_next_token_is_the_expected_one_in_any_blocks_and_chunks():
    runner = make_runner()
    (expected,) = runner.expected_tokens(PROMPT, 1)
    assert next_token(runner, scheduled(PROMPT, [0, 1])) == expected
    assert next_token(runner, scheduled(PROMPT, [5, 3])) == expected
    next_token(runner, scheduled(PROMPT[:3], [2, 4]))
    assert next_token(runner, scheduled(PROMPT[3:], [2, 4], position=3)) == expected


def test_a_block_given_twice_shows():
    runner = make_runner()
    both = scheduled([9, 9, 9, 9, 9], [2, 1]), scheduled(PROMPT, [0, 1])
    assert next_token(runner, *both) == runner.expected_tokens(PROMPT, 1)[0]  # the last writer
    assert runner.execute(ScheduledStep(both))[0].token_id != runner.expected_tokens([9] * 5, 1)[0]


def test_a_block_never_written_shows():
    runner = make_runner()
    assert next_token(runner, scheduled(PROMPT[4:], [0, 1], position=4)) != runner.expected_tokens(PROMPT, 1)[0]


def test_equal_tokens_after_another_beginning_show():
    runner = make_runner()
    next_token(runner, scheduled([9, 9, 9, 9, 5, 5, 5, 5], [0, 1]))
    next_token(runner, scheduled([1, 2, 3, 4], [2]))
    shared = scheduled([7], [2, 1, 3], position=8)
    assert next_token(runner, shared) != runner.expected_tokens([1, 2, 3, 4, 5, 5, 5, 5, 7], 1)[0]


WINDOWED = {"num_blocks": 12, "windows": (None, 3)}
LONG = list(range(11))


def test_a_group_with_a_window_reads_only_what_is_in_it():
    runner = make_runner(**WINDOWED)
    (expected,) = runner.expected_tokens(LONG, 1)
    assert next_token(runner, scheduled(LONG, [0, 1, 2], [3, 4, 5])) == expected
    gone = [RELEASED_BLOCK, 4, 5]
    assert next_token(runner, scheduled(LONG[8:], [0, 1, 2], gone, position=8)) == expected
    next_token(runner, scheduled([9, 9, 9, 9], [6], [3]))  # somebody else's now
    assert next_token(runner, scheduled(LONG[8:], [0, 1, 2], gone, position=8)) == expected


def test_a_block_given_back_too_early_shows():
    runner = make_runner(**WINDOWED)
    next_token(runner, scheduled(LONG, [0, 1, 2], [3, 4, 5]))
    with pytest.raises(AssertionError, match="given back"):
        next_token(runner, scheduled(LONG[9:], [0, 1, 2], [RELEASED_BLOCK, RELEASED_BLOCK, 5], position=9))
    next_token(runner, scheduled([9, 9, 9, 9], [6], [4]))  # somebody else's, and still in the table
    (expected,) = runner.expected_tokens(LONG, 1)
    assert next_token(runner, scheduled(LONG[9:], [0, 1, 2], [3, 4, 5], position=9)) != expected


def test_a_block_of_another_group_shows():
    runner = make_runner(**{**WINDOWED, "windows": (None, None)})
    (expected,) = runner.expected_tokens(PROMPT, 1)
    next_token(runner, scheduled(PROMPT[:5], [0, 1], [2, 3]))
    assert next_token(runner, scheduled(PROMPT[5:], [2, 1], [0, 3], position=5)) != expected
    next_token(runner, scheduled(PROMPT[:5], [0, 1], [2, 3]))
    assert next_token(runner, scheduled(PROMPT[5:], [0, 1], [2, 3], position=5)) == expected


def test_banned_tokens_do_not_come():
    runner = make_runner(eos_token_id=99, eos_probability=1.0)
    assert next_token(runner, scheduled(PROMPT, [0, 1])) == 99
    other = next_token(runner, scheduled(PROMPT, [0, 1], banned_token_ids=(99,)))
    assert other != 99
    assert next_token(runner, scheduled(PROMPT, [0, 1], banned_token_ids=(99, other))) == other + 1
    tokens = runner.expected_tokens(PROMPT, 3, min_tokens=2, ending_token_ids=[99])
    assert [token_id == 99 for token_id in tokens] == [False, False, True]


def test_end_of_sequence_comes_as_often_as_asked():
    runner = make_runner(eos_token_id=999, eos_probability=0.25)
    tokens = runner.expected_tokens(PROMPT, 2000)
    assert 400 < tokens.count(999) < 600
    assert len(set(tokens)) > 500


def test_a_closed_runner_refuses():
    runner = make_runner()
    runner.close()
    with pytest.raises(EngineError, match="closed"):
        next_token(runner, scheduled(PROMPT, [0, 1]))
