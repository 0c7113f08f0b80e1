"""A whole engine in this process: ``EngineCore`` and ``TextEngine`` on a thread of their own, users on the event loop.

::

    event loop                                engine thread
    submit ── check, count ──▶ inbox ──▶ take commands, step, take commands, step, ...
    OutputStream ◀── mailbox ◀──── one call_soon_threadsafe per step ──┘

Everything is bounded: a mailbox by its request's tokens, the inbox by two commands for each accepted request, and the
number of those by ``Admission``. A request counts as accepted until its last output is in its mailbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from ullage.base.errors import EngineError, RequestError
from ullage.engine.admission import Admission, Ticket
from ullage.engine.client import EngineClient, EngineStatus, GenerationOutput, GenerationRequest, OutputStream
from ullage.engine.core import EngineCore
from ullage.engine.grammars import Matcher
from ullage.engine.output import TextEngine, merge_outputs, nothing_yet
from ullage.engine.scheduler import AbortReason
from ullage.models.tokenizer import Tokenizer
from ullage.plan.ledger import LedgerSnapshot

logger = logging.getLogger(__name__)

STOP_SECONDS = 5.0
"""How long ``stop`` waits for the step that runs; one that takes longer hangs."""


class Mailbox:
    """Where the outputs of one request wait for its reader. Belongs to the event loop."""

    def __init__(self, request: GenerationRequest, ticket: Ticket, arrived_at: float) -> None:
        self.request = request
        self.ticket = ticket
        self.arrived_at = arrived_at
        self.latest = nothing_yet(request)
        """For its counts."""
        self.left = False
        """The reader has gone, and the engine thread was told."""
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


@dataclass(frozen=True, slots=True)
class Submit:
    mailbox: Mailbox
    matcher: Matcher | None = None


@dataclass(frozen=True, slots=True)
class Abort:
    mailbox: Mailbox


class Stop:
    pass


Command = Submit | Abort | Stop


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


class EmbeddedEngine(EngineClient):
    """Runs an ``EngineCore`` in a thread of this process.

    :param core: nobody else uses it from now on
    :param tokenizer: None: outputs bear token ids only
    """

    def __init__(self, core: EngineCore, tokenizer: Tokenizer | None) -> None:
        self.max_model_len = core.limits.max_model_len
        self.max_request_tokens = core.limits.max_request_tokens
        self._core = core
        self._engine = TextEngine(core, tokenizer)
        self.max_requests = core.scheduler.config.max_requests
        self._admission = Admission(core.scheduler.config, core.limits)
        # Not queue.Queue: a stream may be collected, and so put its Abort, in the middle of another put.
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._compiling = ThreadPoolExecutor(1, thread_name_prefix="ullage-grammar")
        self._thread = threading.Thread(target=self._run, name="ullage-engine", daemon=True)
        # Of the event loop:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._mailboxes: set[Mailbox] = set()
        self._stopping = self._closed = False
        # Of the engine thread:
        self._owners: dict[int, Mailbox] = {}
        self._request_ids: dict[Mailbox, int] = {}
        self._events: list[tuple[Mailbox, GenerationOutput]] = []
        # Written by the engine thread, read by both:
        self._failure: EngineError | None = None
        self._last_step_at = time.monotonic()

    # ── on the event loop ──

    async def start(self) -> None:
        if self._stopping:
            raise EngineError("the engine was stopped; build a new one")
        self._loop = asyncio.get_running_loop()
        self._last_step_at = time.monotonic()
        self._thread.start()

    async def stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._compiling.shutdown(wait=False, cancel_futures=True)
            self._inbox.put(Stop())
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, STOP_SECONDS)
        if self._thread.is_alive():  # it is a daemon, the process can end without it
            logger.error("a step hangs: gave up after %g s; the engine's memory isn't freed", STOP_SECONDS)
            self._end_all()
        elif not self._closed:
            self._closed = True
            self._core.close()

    def submit(self, request: GenerationRequest) -> OutputStream:
        if self._failure is not None:
            raise EngineError(f"the engine has failed: {self._failure.message}")
        if self._loop is None or self._stopping:
            raise EngineError("the engine isn't running")
        now = self._core.clock()
        self._admission.check(request, now, self._core.scheduler.kv_cache.pool.num_free)
        self._engine.check(request)  # looks at each token: takes longer for more
        mailbox = Mailbox(request, self._admission.accept(request, now), now)
        self._mailboxes.add(mailbox)
        if request.sampling.constraint is None:
            self._inbox.put(Submit(mailbox))
        else:
            self._compiling.submit(self._prepare, mailbox)
        return MailboxStream(mailbox, self._leave)

    def check_room(self, *, tenant: str = "", num_requests: int = 1, num_prompt_tokens: int = 0) -> None:
        self._admission.check_room(tenant, num_requests, num_prompt_tokens, self._core.clock())

    def ledger(self) -> LedgerSnapshot:
        return self._core.ledger.snapshot()

    def status(self) -> EngineStatus:
        if self._failure is not None:
            detail = self._failure.message
        elif self._thread.is_alive() and not self._stopping:
            detail = "serving" if self._mailboxes else "idle"
        else:
            detail = "stopped" if self._stopping else "not started"
        status = self._core.status(healthy=detail in ("serving", "idle"), detail=detail)
        return replace(
            status,
            seconds_since_step=time.monotonic() - self._last_step_at,
            num_refusals={str(bound): count for bound, count in self._admission.num_refusals.items()},
        )

    def _leave(self, mailbox: Mailbox) -> None:
        if mailbox in self._mailboxes and not mailbox.left:
            mailbox.left = True
            self._inbox.put(Abort(mailbox))

    def _deliver(self, started: list[Mailbox], events: list[tuple[Mailbox, GenerationOutput]]) -> None:
        for mailbox in started:
            self._admission.started(mailbox.ticket)
        for mailbox, output in events:
            if mailbox not in self._mailboxes:  # ended when ``stop`` gave up
                continue
            mailbox.put(output)
            if output.finish_reason is not None:
                self._forget(mailbox)

    def _forget(self, mailbox: Mailbox) -> None:
        self._mailboxes.discard(mailbox)
        self._admission.ended(mailbox.ticket, self._core.clock())

    def _end_all(self) -> None:
        """The engine thread has ended: so do all requests that haven't yet."""
        for mailbox in tuple(self._mailboxes):
            last = replace(mailbox.latest, text="", token_ids=(), logprobs=(), finish_reason="abort")
            mailbox.put(last if self._failure is None else replace(last, finish_reason="error", error=self._failure))
            self._forget(mailbox)

    # ── on the thread that compiles constraints ──

    def _prepare(self, mailbox: Mailbox) -> None:
        try:
            matcher = self._engine.matcher_for(mailbox.request)
        except RequestError as error:
            refused = replace(mailbox.latest, finish_reason="error", error=error)
            self._post(lambda: self._deliver([], [(mailbox, refused)]))
        else:
            self._inbox.put(Submit(mailbox, matcher))

    # ── on the engine thread ──

    def _run(self) -> None:
        """One of the three doors where any exception is met: whatever a step raises, every request gets its end."""
        try:
            while self._take_commands():
                if self._engine.has_work:
                    self._step()
                self._post_events()
            for request_id in self._engine.request_ids:
                self._abort(request_id, "shutdown")
            self._post_events()
        except Exception as error:
            logger.exception("the engine failed")
            reason = error.message if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
            self._failure = EngineError(reason)
        self._post(self._end_all)

    def _take_commands(self) -> bool:
        """Obeys all commands there are; sleeps until the first while there is no work. False: stop."""
        wait = not self._engine.has_work
        while True:
            try:
                command = self._inbox.get(block=wait)
            except queue.Empty:
                return True
            if wait:
                wait, self._last_step_at = False, time.monotonic()
            if isinstance(command, Stop):
                return False
            if isinstance(command, Submit) and command.mailbox.left:  # its reader didn't wait for the compiler
                self._events.append((command.mailbox, replace(command.mailbox.latest, finish_reason="abort")))
            elif isinstance(command, Submit):
                mailbox = command.mailbox
                request_id = self._engine.add_request(mailbox.request, mailbox.arrived_at, command.matcher)
                self._owners[request_id] = command.mailbox
                self._request_ids[command.mailbox] = request_id
            elif command.mailbox in self._request_ids:
                self._abort(self._request_ids[command.mailbox])

    def _step(self) -> None:
        for request_id, output in self._engine.step():
            self._add_event(request_id, output)
        self._last_step_at = time.monotonic()

    def _abort(self, request_id: int, reason: AbortReason = "client") -> None:
        output = self._engine.abort(request_id, reason)
        if output is not None:
            self._add_event(request_id, output)

    def _add_event(self, request_id: int, output: GenerationOutput) -> None:
        mailbox = self._owners[request_id]
        self._events.append((mailbox, output))
        if output.finish_reason is not None:
            del self._owners[request_id], self._request_ids[mailbox]

    def _post_events(self) -> None:
        started = [self._owners[i] for i in self._engine.core.take_started() if i in self._owners]
        if started or self._events:
            events, self._events = self._events, []
            self._post(lambda: self._deliver(started, events))

    def _post(self, callback: Callable[[], None]) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody is left to tell
            self._loop.call_soon_threadsafe(callback)
