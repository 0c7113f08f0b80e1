"""A runner without a model, that tells whether the blocks were right.

A slot of its fake KV pool holds a hash of the token written there and of what it *reads back* from the slot before, as
the keys and values of a real model depend on all that stands before them. The next token is a hash of all slots of the
request, read back through its block table. So the tokens of a request depend on its prompt alone, however it was
chunked, batched, cached or preempted; and a block that was given twice, kept too long or shared when it shouldn't be
changes them.
"""

from __future__ import annotations

import time
import zlib
from array import array
from collections.abc import Collection, Sequence

from ullage.base.errors import EngineError
from ullage.engine.step import SampledToken, ScheduledRequest, ScheduledStep

NOTHING_WRITTEN = 0xFFFF_FFFF


class FakeRunner:
    """Implements ``ModelRunner``. Ships with the package as the double for tests of whatever stands on an engine.

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
        eos_token_id: int | None = None,
        eos_probability: float = 0.0,
        step_seconds: float = 0.0,
    ) -> None:
        self.vocab_size = vocab_size
        self.num_steps = 0
        self.closed = False
        self._block_size = block_size
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
        slots = array("L")
        token_ids: list[int] = []
        for token_id in prompt_token_ids:
            slots.append(_slot_value(token_id, slots[-1] if slots else 0))
        for num_output_tokens in range(num_tokens):
            banned = ending_token_ids if num_output_tokens < min_tokens else ()
            token_ids.append(self._next_token(slots, banned))
            slots.append(_slot_value(token_ids[-1], slots[-1]))
        return token_ids

    def _write(self, request: ScheduledRequest) -> None:
        for position, token_id in enumerate(request.token_ids, request.num_computed_tokens):
            before = self._slot(request, position - 1) if position else 0
            index, offset = divmod(position, self._block_size)
            self._blocks[request.block_ids[index]][offset] = _slot_value(token_id, before)

    def _slot(self, request: ScheduledRequest, position: int) -> int:
        index, offset = divmod(position, self._block_size)
        return self._blocks[request.block_ids[index]][offset]

    def _sample(self, request: ScheduledRequest) -> SampledToken:
        slots = array("L")
        for block_id in request.block_ids:
            slots.extend(self._blocks[block_id])
        del slots[request.num_computed_tokens + len(request.token_ids) :]
        token_id = self._next_token(slots, request.banned_token_ids)
        if request.sampling.logprobs is None:
            return SampledToken(request.request_id, token_id)
        candidates = [(token_id + i) % self.vocab_size for i in range(request.sampling.logprobs)]
        top_logprobs = tuple((candidate, -1.0 - i) for i, candidate in enumerate(candidates))
        return SampledToken(request.request_id, token_id, -1.0, top_logprobs)

    def _next_token(self, slots: array[int], banned_token_ids: Collection[int]) -> int:
        digest = zlib.crc32(slots.tobytes())
        avoided = [*banned_token_ids]
        if self._eos_token_id is not None and self._eos_token_id not in avoided:
            if zlib.crc32(b"end", digest) < self._eos_probability * 2**32:
                return self._eos_token_id
            avoided.append(self._eos_token_id)
        assert len({*avoided}) < self.vocab_size, "no token is left"
        token_id = digest % self.vocab_size
        while token_id in avoided:
            token_id = (token_id + 1) % self.vocab_size
        return token_id


def _slot_value(token_id: int, before: int) -> int:
    return zlib.crc32(token_id.to_bytes(4, "little"), before)
