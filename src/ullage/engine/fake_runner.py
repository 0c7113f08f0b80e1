"""A runner without a model, that tells whether the blocks were right.

It writes token ids into fake KV slots through the block table, as a real runner writes keys and values, and makes the
next token a hash of all the ids it *reads back* through the table. So the tokens of a request depend on its prompt
alone, however it was chunked, batched, cached or preempted; and a block that was given twice, kept too long or shared
when it shouldn't be changes them.
"""

from __future__ import annotations

import time
import zlib
from array import array
from collections.abc import Collection, Sequence

from ullage.base.errors import EngineError
from ullage.engine.step import SampledToken, ScheduledRequest, ScheduledStep

NOTHING_WRITTEN = -1


class FakeRunner:
    """Implements ``ModelRunner``. Ships with the package as the double for tests of whatever stands on an engine.

    :param eos_token_id: drawn with ``eos_probability`` in place of another token
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
        self._blocks = [array("q", [NOTHING_WRITTEN]) * block_size for _ in range(num_blocks)]
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
        token_ids = array("q", prompt_token_ids)
        for num_output_tokens in range(num_tokens):
            banned = ending_token_ids if num_output_tokens < min_tokens else ()
            token_ids.append(self._next_token(token_ids, banned))
        return token_ids[len(prompt_token_ids) :].tolist()

    def _write(self, request: ScheduledRequest) -> None:
        for position, token_id in enumerate(request.token_ids, request.num_computed_tokens):
            index, offset = divmod(position, self._block_size)
            self._blocks[request.block_ids[index]][offset] = token_id

    def _sample(self, request: ScheduledRequest) -> SampledToken:
        written = array("q")
        for block_id in request.block_ids:
            written.extend(self._blocks[block_id])
        del written[request.num_computed_tokens + len(request.token_ids) :]
        token_id = self._next_token(written, request.banned_token_ids)
        if request.sampling.logprobs is None:
            return SampledToken(request.request_id, token_id)
        candidates = [(token_id + i) % self.vocab_size for i in range(request.sampling.logprobs)]
        top_logprobs = tuple((candidate, -1.0 - i) for i, candidate in enumerate(candidates))
        return SampledToken(request.request_id, token_id, -1.0, top_logprobs)

    def _next_token(self, token_ids: array[int], banned_token_ids: Collection[int]) -> int:
        digest = zlib.crc32(token_ids.tobytes())
        token_id, luck = digest % self.vocab_size, (digest ^ 0x9E3779B9) * 2654435761 % 2**32 / 2**32
        if self._eos_token_id is not None and luck < self._eos_probability:
            token_id = self._eos_token_id
        while token_id in banned_token_ids:
            token_id = (token_id + 1) % self.vocab_size
        return token_id
