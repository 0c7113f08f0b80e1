"""A runner without a model, that tells whether the blocks were right.

A slot of its fake KV pool holds a hash of the token written there and of what it *reads back* from the slots before: of
all in the window of its layer group the first and the last, as the keys and values of a real model depend on all that
they see. The next token is a hash of all slots of the request that it sees, read back through its block tables. So the
tokens of a request depend on its prompt alone, however it was chunked, batched, cached or preempted; and a block that
was given twice, kept too long, given back too early or shared when it shouldn't be changes them.
"""

from __future__ import annotations

import time
import zlib
from array import array
from collections.abc import Callable, Collection, Sequence
from functools import partial

from ullage.base.errors import EngineError
from ullage.engine.step import RELEASED_BLOCK, SampledToken, ScheduledRequest, ScheduledStep

NOTHING_WRITTEN = 0xFFFF_FFFF


class FakeRunner:
    """Implements ``ModelRunner``. Ships with the package as the double for tests of whatever stands on an engine.

    :param windows: that of each layer group, as in ``BlockDemand``
    :param eos_token_id: comes with ``eos_probability``, and not otherwise
    :param step_seconds: how long a step takes
    """

    name = "fake"

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        vocab_size: int,
        windows: Sequence[int | None] = (None,),
        eos_token_id: int | None = None,
        eos_probability: float = 0.0,
        step_seconds: float = 0.0,
    ) -> None:
        self.vocab_size = vocab_size
        self.num_steps = 0
        self.closed = False
        self._block_size = block_size
        self._windows = windows
        self._blocks = [array("L", [NOTHING_WRITTEN]) * block_size for _ in range(num_blocks)]
        self._eos_token_id = eos_token_id
        self._eos_probability = eos_probability
        self._step_seconds = step_seconds

    def execute(self, step: ScheduledStep) -> list[SampledToken]:
        if self.closed:
            raise EngineError("the runner is closed")
        assert step.requests, "a step is never empty"
        self.num_steps += 1
        if self._step_seconds:
            time.sleep(self._step_seconds)
        for request in step.requests:  # all of them before anything is read, as a layer of a model does
            self._write(request)
        return [self._sample(request) for request in step.requests if request.needs_logits]

    def stage_seconds(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        self.closed = True

    def expected_tokens(
        self,
        prompt_token_ids: Sequence[int],
        num_tokens: int,
        *,
        min_tokens: int = 0,
        ending_token_ids: Collection[int] = (),
    ) -> list[int]:
        """What a request must get if nothing ends it, worked out without any block.

        :param ending_token_ids: those that can't come within the first ``min_tokens``
        """
        groups = [array("L") for _ in self._windows]
        token_ids: list[int] = []
        for position in range(len(prompt_token_ids) + num_tokens):
            num_output_tokens = position - len(prompt_token_ids)
            if num_output_tokens >= 0:
                banned = ending_token_ids if num_output_tokens < min_tokens else ()
                seen = [slots[_first_seen(w, position - 1) :] for w, slots in zip(self._windows, groups, strict=True)]
                token_ids.append(self._next_token(seen, banned))
            token_id = token_ids[-1] if num_output_tokens >= 0 else prompt_token_ids[position]
            for group, slots in enumerate(groups):
                slots.append(self._slot_value(token_id, position, group, slots.__getitem__))
        return token_ids

    def _write(self, request: ScheduledRequest) -> None:
        for group, table in enumerate(request.block_tables):
            for position, token_id in enumerate(request.token_ids, request.num_computed_tokens):
                value = self._slot_value(token_id, position, group, partial(self._read, table))
                index, offset = divmod(position, self._block_size)
                self._block(table[index])[offset] = value

    def _slot_value(self, token_id: int, position: int, group: int, read: Callable[[int], int]) -> int:
        """:param read: gives the value of a slot by its position"""
        first = _first_seen(self._windows[group], position)
        before = f"{read(first)} {read(position - 1)}" if first < position else ""
        return zlib.crc32(f"{token_id} {group} {before}".encode())

    def _read(self, table: Sequence[int], position: int) -> int:
        index, offset = divmod(position, self._block_size)
        return self._block(table[index])[offset]

    def _block(self, block_id: int) -> array[int]:
        assert block_id != RELEASED_BLOCK, "a block that was given back is still needed"
        return self._blocks[block_id]

    def _sample(self, request: ScheduledRequest) -> SampledToken:
        num_tokens = request.num_computed_tokens + len(request.token_ids)
        seen = []
        for window, table in zip(self._windows, request.block_tables, strict=True):
            first = _first_seen(window, num_tokens - 1)
            first_block = first // self._block_size
            slots = array("L")
            for block_id in table[first_block : -(-num_tokens // self._block_size)]:
                slots.extend(self._block(block_id))
            start = first_block * self._block_size
            seen.append(slots[first - start : num_tokens - start])
        avoided = request.banned_token_ids
        if request.token_mask is not None:
            avoided = sorted({*avoided, *self._masked(request.token_mask)})
        if len({*avoided}) == self.vocab_size:
            return SampledToken(request.request_id, None, error="no token can be chosen")
        token_id = self._next_token(seen, avoided)
        if request.sampling.logprobs is None:
            return SampledToken(request.request_id, token_id)
        candidates = [(token_id + i) % self.vocab_size for i in range(request.sampling.logprobs)]
        top_logprobs = tuple((candidate, -1.0 - i) for i, candidate in enumerate(candidates))
        return SampledToken(request.request_id, token_id, -1.0, top_logprobs)

    def _masked(self, mask: bytes) -> list[int]:
        return [token_id for token_id in range(self.vocab_size) if not mask[token_id // 8] >> token_id % 8 & 1]

    def _next_token(self, seen: Sequence[array[int]], banned_token_ids: Collection[int]) -> int:
        """:param seen: the values of each layer group that the last token sees, its own among them"""
        digest = 0
        for slots in seen:
            digest = zlib.crc32(slots.tobytes(), digest)
        avoided = [*dict.fromkeys(banned_token_ids)]
        if self._eos_token_id is not None and self._eos_token_id not in avoided:
            if zlib.crc32(b"end", digest) < self._eos_probability * 2**32 or len(avoided) == self.vocab_size - 1:
                return self._eos_token_id
            avoided.append(self._eos_token_id)
        assert len({*avoided}) < self.vocab_size, "no token is left"
        token_id = digest % self.vocab_size
        while token_id in avoided:
            token_id = (token_id + 1) % self.vocab_size
        return token_id


def _first_seen(window: int | None, position: int) -> int:
    """The first position that the token at ``position`` sees."""
    return 0 if window is None else max(0, position + 1 - window)
