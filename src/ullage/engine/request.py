"""One request as the scheduler sees it, and what must hold before it becomes one."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from ullage.base.errors import ContextLengthError, InvalidRequestError, KVCapacityError, UllageError
from ullage.engine.block_pool import Prefix
from ullage.engine.client import FinishReason, RequestTimes
from ullage.engine.sampling_params import SamplingParams
from ullage.plan.block_demand import BlockDemand


class RequestStatus(Enum):
    WAITING = auto()
    """Holds no blocks: new, or preempted."""
    RUNNING = auto()
    """Holds blocks for all tokens that its next step may run or see; runs in every step."""
    FINISHED = auto()


@dataclass(slots=True, eq=False)
class Request:
    """The changing state of one request. The scheduler owns it.

    ::

        token_ids   [ prompt ............................ | output ...... ]
                    0         num_computed_tokens          num_prompt_tokens    num_tokens
                    [ keys and values are in the blocks ][ still to be run ...... ]
    """

    request_id: int
    """Numbered by arrival: the smaller one came first."""
    token_ids: list[int]
    """Prompt, then output; only ever appended to."""
    num_prompt_tokens: int
    sampling: SamplingParams
    seed: int
    eos_token_ids: frozenset[int] = frozenset()
    """End-of-sequence ids that end this request; empty when it ignores them."""
    cache_salt: str = ""
    tenant: str = ""
    weight: float = 1.0
    priority: int = 0
    """Class of urgency: a lower number goes first."""
    arrived_at: float = 0.0
    """By the engine's clock, in seconds, as all times here."""
    deadline: float = math.inf
    is_probe: bool = False
    """Asked by the service itself, to see whether the engine works: in no count, and in no cache."""

    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    """The id of ``sampling.stop_token_ids`` that ended it."""
    block_tables: list[list[int]] = field(default_factory=list)
    """A block table for each layer group, none while it waits. Appended to while the request runs; entries become
    ``RELEASED_BLOCK`` when no token to come can see them. A new list after it gave its blocks back."""
    prefix: Prefix | None = None
    """What its full blocks end with; None: it has none, or prefixes aren't cached."""
    num_computed_tokens: int = 0
    """Tokens whose keys and values are in the blocks."""
    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache when it first ran."""
    num_preemptions: int = 0
    is_protected: bool = False
    """Promised all blocks that it may ever hold when it starts, so never preempted while it runs."""
    num_promised_blocks: int = 0
    """While it runs and is protected: all that it may ever hold."""
    num_held_blocks: int = 0
    num_expected_tokens: int = 0
    """Prompt and output, as long as it is thought to become."""
    num_times_passed: int = 0
    """Requests behind it in the queue that started before it, because it was too large for the blocks there were."""
    started_at: float | None = None
    """When it left the queue for the first time."""
    first_token_at: float | None = None
    last_token_at: float | None = None

    @property
    def seniority(self) -> tuple[bool, int, int]:
        """Of two that run, the smaller one keeps its blocks: those that are protected, then by class, then the oldest.
        Doesn't change while a request runs.
        """
        return (not self.is_protected, self.priority, self.request_id)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_pending_tokens(self) -> int:
        """Tokens still to be run: 1 is a decode, more are a prefill."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def banned_token_ids(self) -> tuple[int, ...]:
        """Tokens that would end the output before ``min_tokens``."""
        if self.num_output_tokens >= self.sampling.min_tokens:
            return ()
        return (*sorted(self.eos_token_ids), *self.sampling.stop_token_ids)

    def append(self, token_id: int) -> None:
        """Adds a generated token and notes whether the output ends with it.

        ``max_tokens`` also stands for the context limit: ``RequestLimits`` lets in no request that could pass it.
        """
        self.token_ids.append(token_id)
        if token_id in self.eos_token_ids:
            self.finish_reason = "stop"
        elif token_id in self.sampling.stop_token_ids:
            self.finish_reason, self.stop_reason = "stop", token_id
        elif self.num_output_tokens >= self.sampling.max_tokens:
            self.finish_reason = "length"


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """What a step gave one request: one new token. The last one, and only it, has a ``finish_reason``."""

    request_id: int
    token_id: int | None
    """None only when ``finish_reason`` is ``error``: the runner could choose none."""
    logprob: float | None
    top_logprobs: tuple[tuple[int, float], ...]
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    """The stop token id that ended the output; None at the model's own end of sequence."""
    error: UllageError | None = None
    times: RequestTimes | None = None
    """On the last one."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What any request must keep to be served at all. Plain numbers: may be asked from any thread."""

    max_model_len: int
    """Prompt + output tokens."""
    num_blocks: int
    """Blocks in the KV pool."""
    demand: BlockDemand
    """How many of them a request may need."""
    vocab_size: int

    @property
    def max_request_tokens(self) -> int:
        """Prompt + output tokens of the largest request that context and pool allow."""
        return self.demand.most_tokens(self.num_blocks, at_most=self.max_model_len)

    def check(self, prompt_token_ids: Sequence[int], sampling: SamplingParams) -> None:
        """:raises RequestError: the request could never be served; says which number is in the way"""
        if not prompt_token_ids:
            raise InvalidRequestError("the prompt is empty", param="prompt", hint="send at least one token")
        self.check_length(len(prompt_token_ids), sampling.max_tokens)  # before anything that takes longer for more
        self._check_vocabulary("prompt", prompt_token_ids)
        self._check_vocabulary("logit_bias", sampling.logit_bias.keys())
        self._check_vocabulary("stop_token_ids", sampling.stop_token_ids)
        self._check_vocabulary("visible_token_ids", sampling.visible_token_ids)

    def check_length(self, num_prompt_tokens: int, max_tokens: int) -> None:
        """:raises ContextLengthError, KVCapacityError: more than context or pool can ever hold"""
        num_tokens = num_prompt_tokens + max_tokens
        asked = f"{num_prompt_tokens} prompt tokens + {max_tokens} output tokens = {num_tokens}"
        if num_tokens > self.max_model_len:
            raise ContextLengthError(
                f"{asked}, but the context limit is {self.max_model_len} tokens",
                param="max_tokens" if num_prompt_tokens < self.max_model_len else "prompt",
                hint="shorten the prompt or ask for fewer output tokens",
                details={"tokens_needed": num_tokens, "max_model_len": self.max_model_len},
            )
        num_blocks = self.demand.num_blocks(num_tokens)
        if num_blocks > self.num_blocks:
            raise KVCapacityError(
                f"{asked} need {num_blocks} KV blocks, but the pool has {self.num_blocks}: "
                f"at most {self.max_request_tokens} tokens",
                param="max_tokens" if num_prompt_tokens < self.max_request_tokens else "prompt",
                hint="shorten the prompt or ask for fewer output tokens, or serve with a larger --kv-memory",
                details={"blocks_needed": num_blocks, "blocks_total": self.num_blocks},
            )

    def _check_vocabulary(self, param: str, token_ids: Collection[int]) -> None:
        if not token_ids or (
            set(map(type, token_ids)) == {int} and min(token_ids) >= 0 and max(token_ids) < self.vocab_size
        ):
            return
        for token_id in token_ids:
            if type(token_id) is not int or not 0 <= token_id < self.vocab_size:
                raise InvalidRequestError(
                    f"{param} has token id {token_id!r}, but ids are ints from 0 to {self.vocab_size - 1}", param=param
                )
