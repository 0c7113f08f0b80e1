"""The mask of a constraint, beside the other options of the sampler."""

from __future__ import annotations

import numpy as np
from tests.unit.engine.test_sampler import request, row, sample_one

from ullage.engine.sampler import sample


def mask_of(*token_ids: int) -> bytes:
    bits = sum(1 << token_id for token_id in token_ids)
    return bits.to_bytes(4, "little")


def test_only_what_a_mask_allows_is_chosen() -> None:
    logits = row(1.0, 5.0, 3.0, 2.0)
    assert sample_one(logits, request(mask=mask_of(0, 3))).token_id == 3
    assert sample_one(logits, request(mask=mask_of(0, 3), banned=[3])).token_id == 0
    assert sample_one(logits, request(mask=mask_of(0, 3), logit_bias={0: 4.0})).token_id == 0
    drawn = {sample_one(logits, request(mask=mask_of(0, 3), temperature=2.0, seed=n)).token_id for n in range(50)}
    assert drawn == {0, 3}
    assert sample_one(logits, request(mask=mask_of(0, 3), temperature=2.0, top_k=1)).token_id == 3


def test_log_probabilities_are_those_before_the_mask() -> None:
    logits = row(1.0, 5.0, 3.0, 2.0)
    masked, free = (sample_one(logits, request(mask=mask, logprobs=4)) for mask in (mask_of(0), None))
    assert masked.token_id == 0
    assert masked.top_logprobs == free.top_logprobs
    assert masked.logprob == dict(free.top_logprobs)[0]
    assert all(np.isfinite(logprob) for _, logprob in masked.top_logprobs)


def test_a_mask_that_allows_nothing_ends_its_own_request() -> None:
    tokens = sample(np.stack([row(1.0, 2.0)] * 2), [request(mask=mask_of()), request()])
    assert [token.token_id for token in tokens] == [None, 1]
    assert "no token can be chosen" in tokens[0].error
