"""All that the scheduler and a runner know of each other: one step.

A prefill and a decode are the same thing here: ``num_computed_tokens`` catching up with the tokens a request has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ullage.engine.sampling_params import SamplingParams

RELEASED_BLOCK = -1
"""Stands in a block table for a block that was given back, because no token from now on can see it."""


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """The part of one request that runs in this step."""

    request_id: int
    token_ids: Sequence[int]
    """Exactly what to run now; the runner never derives it again."""
    num_computed_tokens: int
    """Position of ``token_ids[0]``: this many tokens have keys and values in the blocks already."""
    block_tables: Sequence[Sequence[int]]
    """The whole block table of each layer group, in the order of ``layer_groups``, each long enough for
    ``num_computed_tokens + len(token_ids)`` tokens: the runner keeps no state."""
    sampling: SamplingParams
    seed: int
    """``sampling.seed``, or the one drawn for this request; with the position it keys the draw."""
    needs_logits: bool
    """False for a prefill chunk that isn't the last."""
    history: Sequence[int]
    """All tokens so far, prompt then output (``token_ids`` included): what the penalties count."""
    num_prompt_tokens: int
    """How many of ``history`` are the prompt."""
    banned_token_ids: Sequence[int] = ()
    """Tokens that must not be chosen now (end of sequence before ``min_tokens``)."""
    token_mask: bytes | None = None
    """The tokens that a constraint allows now, one bit each, the lowest bit of the first byte is token 0, rounded up to
    whole 32-bit words; None: all."""


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """What to run at once. Never empty when handed to a runner."""

    requests: tuple[ScheduledRequest, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(request.token_ids) for request in self.requests)


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A runner's answer: one for each scheduled request with ``needs_logits``, in the step's order."""

    request_id: int
    token_id: int | None
    """None: none could be chosen, ``error`` says why; this request ends and the others go on."""
    logprob: float | None = None
    """Natural logarithm of the token's probability before temperature and filters; only when asked for."""
    top_logprobs: tuple[tuple[int, float], ...] = ()
    """The k best (token id, log-probability), best first."""
    error: str = ""
    is_requests_fault: bool = False
    """With ``error``: the same request would fail again."""
