"""The event loop's half of an engine: which requests are accepted, and the mailboxes in which their outputs wait.

Everything is bounded: a mailbox by its request's tokens, the number of requests by the scheduler's limit. A request
counts as accepted until its last output is in its mailbox.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from ullage.base.errors import EngineError, QueueFullError
from ullage.engine.client import GenerationOutput, GenerationRequest
from ullage.engine.output import merge_outputs, nothing_yet

UNMEASURED_STEP_SECONDS = 0.1
"""What a step is taken to last before the first one is over."""
RETRY_SECONDS = (1.0, 60.0)
"""The least and the most that a refused client is told to wait."""


class Mailbox:
    """Where the outputs of one request wait for its reader. Belongs to the event loop."""

    def __init__(self, key: int, request: GenerationRequest) -> None:
        self.key = key
        """What the engine calls the request; never used again."""
        self.request = request
        self.latest = nothing_yet(request)
        """For its counts."""
        self.left = False
        """The reader has gone, and the engine was told."""
        self._pending: list[GenerationOutput] = []
        self._arrived = asyncio.Event()
        self._being_read = False

    def put(self, output: GenerationOutput) -> None:
        self.latest = output
        if not self.left or output.finish_reason is not None:
            self._pending.append(output)
            self._arrived.set()

    async def take(self) -> GenerationOutput:
        """All that has come since the last time, as one output."""
        if self._being_read:
            raise RuntimeError("the stream is being read already: it has one reader")  # as an async generator says it
        self._being_read = True
        try:
            await self._arrived.wait()
        finally:
            self._being_read = False
        self._arrived.clear()
        pending, self._pending = self._pending, []
        return merge_outputs(pending)


class MailboxStream:
    """Reads a mailbox. Leaving it, in whatever way, aborts the request."""

    def __init__(self, mailbox: Mailbox, leave: Callable[[Mailbox], None]) -> None:
        self._mailbox = mailbox
        self._leave = leave
        self._ended = False

    def __aiter__(self) -> MailboxStream:
        return self

    async def __anext__(self) -> GenerationOutput:
        if self._ended:
            raise StopAsyncIteration
        try:
            output = await self._mailbox.take()
        except asyncio.CancelledError:
            await self.aclose()
            raise
        self._ended = output.finish_reason is not None
        return output

    async def aclose(self) -> None:
        self._ended = True
        self._leave(self._mailbox)

    def __del__(self) -> None:  # the reader broke out of its loop and forgot the stream
        self._leave(self._mailbox)


class AcceptedRequests:
    """All requests that await their last output. Belongs to the event loop.

    :param check: raises ``RequestError`` for a request that can never be served
    :param max_requests: so many at one time
    """

    def __init__(self, check: Callable[[GenerationRequest], None], max_requests: int) -> None:
        self.max_requests = max_requests
        self.step_seconds = 0.0
        """What a step lasts, lately."""
        self._check = check
        self._mailboxes: dict[int, Mailbox] = {}
        self._num_accepted = 0
        self._usual_num_outputs = 0.0

    def __len__(self) -> int:
        return len(self._mailboxes)

    def accept(self, request: GenerationRequest) -> Mailbox:
        """:raises RequestError: can never be served, or can't now; nothing was accepted"""
        self._check(request)
        if len(self._mailboxes) >= self.max_requests:
            raise QueueFullError(
                f"{self.max_requests} requests are waiting or running already",
                retry_after_seconds=self.seconds_to_next_end(),
            )
        mailbox = Mailbox(self._num_accepted, request)
        self._num_accepted += 1
        self._mailboxes[mailbox.key] = mailbox
        return mailbox

    def leave(self, mailbox: Mailbox) -> bool:
        """Notes that a reader has gone. True: its request is still in the engine's hands, which must be told."""
        if mailbox.key not in self._mailboxes or mailbox.left:
            return False
        mailbox.left = True
        return True

    def deliver(self, events: Iterable[tuple[int, GenerationOutput]]) -> None:
        """Takes outputs in, by the keys of their requests; those of requests that have ended are passed over."""
        for key, output in events:
            mailbox = self._mailboxes.get(key)
            if mailbox is None:
                continue
            mailbox.put(output)
            if output.finish_reason is not None:
                del self._mailboxes[key]
            if output.finish_reason in ("stop", "length"):
                self._usual_num_outputs = averaged(self._usual_num_outputs, output.num_output_tokens)

    def end_all(self, error: EngineError | None) -> None:
        """No engine is behind them any more: each gets its last output now, an ``abort`` when nothing failed."""
        for mailbox in self._mailboxes.values():
            last = replace(mailbox.latest, text="", token_ids=(), logprobs=(), finish_reason="abort")
            mailbox.put(last if error is None else replace(last, finish_reason="error", error=error))
        self._mailboxes.clear()

    def seconds_to_next_end(self) -> float:
        """When the first of the running requests should have all its tokens, going by how many they had lately."""
        usual = self._usual_num_outputs or math.inf
        num_steps = min(
            min(mailbox.request.sampling.max_tokens, usual) - mailbox.latest.num_output_tokens
            for mailbox in self._mailboxes.values()
        )
        seconds = num_steps * (self.step_seconds or UNMEASURED_STEP_SECONDS)
        return min(max(seconds, RETRY_SECONDS[0]), RETRY_SECONDS[1])


def averaged(average: float, value: float) -> float:
    """A moving average, moved on; 0 before the first value."""
    return average + (value - average) * (0.1 if average else 1.0)
