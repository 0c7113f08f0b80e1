"""The event loop's half of an engine: which requests are accepted, and the mailboxes in which their outputs wait.

Everything is bounded: a mailbox by its request's tokens, the number of requests by ``Admission``. A request counts as
accepted until its last output is in its mailbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

from ullage.base.errors import EngineError
from ullage.engine.admission import Admission, Ticket
from ullage.engine.client import EngineStatus, GenerationOutput, GenerationRequest, OnEnd, RequestTimes
from ullage.engine.output import merge_outputs, nothing_yet
from ullage.engine.request import RequestLimits
from ullage.engine.scheduler import SchedulerConfig


class Mailbox:
    """Where the outputs of one request wait for its reader. Belongs to the event loop."""

    def __init__(
        self, key: int, request: GenerationRequest, ticket: Ticket, arrived_at: float, on_end: OnEnd | None
    ) -> None:
        self.key = key
        """What the engine calls the request; never used again."""
        self.on_end = on_end
        self.is_probe = request.is_probe
        self.ticket = ticket
        self.arrived_at = arrived_at
        self.started_at: float | None = None
        """When the engine told that it had left the queue."""
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
    :param clock: the engine's: seconds that never go back
    """

    def __init__(self, check: Callable[[GenerationRequest], None], clock: Callable[[], float]) -> None:
        self._admission: Admission | None = None
        self._check = check
        self._clock = clock
        self._mailboxes: dict[int, Mailbox] = {}
        self._num_accepted = 0
        self._num_probes = self._num_open_probes = 0

    def __len__(self) -> int:
        return len(self._mailboxes)

    def open(self, config: SchedulerConfig, limits: RequestLimits) -> None:
        """An engine is there to take requests; those of one before it have ended."""
        assert not self._mailboxes
        before = None if self._admission is None else self._admission.num_refusals
        self._admission = Admission(config, limits, before)

    def accept(self, request: GenerationRequest, num_free_blocks: int, on_end: OnEnd | None = None) -> Mailbox:
        """:param num_free_blocks: as last told by the engine; for the answer of one that is refused

        :raises RequestError: can never be served, or can't now; nothing was accepted
        """
        assert self._admission is not None
        now = self._clock()
        self._admission.check(request, now, num_free_blocks)
        self._check(request)  # looks at each token: takes longer for more
        mailbox = Mailbox(self._num_accepted, request, self._admission.accept(request, now), now, on_end)
        self._num_accepted += 1
        self._num_probes += request.is_probe
        self._num_open_probes += request.is_probe
        self._mailboxes[mailbox.key] = mailbox
        return mailbox

    def check_room(self, tenant: str, num_requests: int, num_prompt_tokens: int) -> None:
        """:raises QueueFullError: so much wouldn't be accepted now"""
        assert self._admission is not None
        self._admission.check_room(tenant, num_requests, num_prompt_tokens, self._clock())

    def leave(self, mailbox: Mailbox) -> bool:
        """Notes that a reader has gone. True: its request is still in the engine's hands, which must be told."""
        if mailbox.key not in self._mailboxes or mailbox.left:
            return False
        mailbox.left = True
        return True

    def deliver(self, started: Iterable[int], events: Iterable[tuple[int, GenerationOutput]]) -> None:
        """Takes in who left the queue, and outputs, by their requests' keys. Those that have ended are passed over."""
        assert self._admission is not None
        for key in started:
            if (mailbox := self._mailboxes.get(key)) is not None:
                self._admission.started(mailbox.ticket)
                mailbox.started_at = mailbox.started_at or self._clock()
        ends = []
        for key, output in events:
            mailbox = self._mailboxes.get(key)
            if mailbox is None:
                continue
            if output.finish_reason is None:
                mailbox.put(output)
            else:
                ends.append(self._end(mailbox, output))
        _tell(ends)

    def end_all(self, error: EngineError | None) -> None:
        """No engine is behind them any more: each gets its last output now, an ``abort`` when nothing failed."""
        ends = []
        for mailbox in tuple(self._mailboxes.values()):
            last = replace(mailbox.latest, text="", token_ids=(), logprobs=(), finish_reason="abort")
            last = last if error is None else replace(last, finish_reason="error", error=error)
            ends.append(self._end(mailbox, last))
        _tell(ends)

    def counted(self, status: EngineStatus) -> EngineStatus:
        """What an engine says of itself, with what is counted here."""
        refusals = {} if self._admission is None else self._admission.num_refusals
        return replace(
            status,
            num_refusals={str(bound): count for bound, count in refusals.items()},
            num_accepted=self._num_accepted - self._num_probes,
            num_open=len(self._mailboxes) - self._num_open_probes,
        )

    def _end(self, mailbox: Mailbox, last: GenerationOutput) -> tuple[OnEnd | None, GenerationOutput]:
        """Who is to be told, and what."""
        assert self._admission is not None
        now = self._clock()
        if last.times is None:  # the core never saw it, or is no more
            last = replace(last, times=RequestTimes(mailbox.arrived_at, mailbox.started_at, None, now))
        del self._mailboxes[mailbox.key]
        self._num_open_probes -= mailbox.is_probe
        self._admission.ended(mailbox.ticket, now)
        mailbox.put(last)
        return mailbox.on_end, last


def _tell(ends: Iterable[tuple[OnEnd | None, GenerationOutput]]) -> None:
    """Once all have their last output: what is told here may fail, and must keep it from nobody."""
    for on_end, last in ends:
        if on_end is not None:
            on_end(last)
