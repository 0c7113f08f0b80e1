"""A whole engine in this process: an ``EngineLoop`` on a thread of its own, users on the event loop.

::

    event loop                                engine thread
    submit ── check, count ──▶ inbox ──▶ take commands, step, take commands, step, ...
    OutputStream ◀── mailbox ◀──── one call_soon_threadsafe per step ──┘

The inbox is bounded by two commands for each accepted request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ullage.base.errors import EngineError
from ullage.engine.accepted_requests import AcceptedRequests, Mailbox, MailboxStream
from ullage.engine.client import (
    EngineClient,
    EngineFigures,
    EngineStatus,
    GenerationRequest,
    OnEnd,
    OutputStream,
)
from ullage.engine.core import EngineCore
from ullage.engine.cpu_use import CpuUse
from ullage.engine.engine_loop import Abort, Command, EngineLoop, Event, Stop, Submit
from ullage.engine.output import TextEngine
from ullage.models.tokenizer import Tokenizer
from ullage.plan.ledger import LedgerSnapshot

logger = logging.getLogger(__name__)

STOP_SECONDS = 5.0
"""How long ``stop`` waits for the step that runs; one that takes longer hangs."""


class EmbeddedEngine(EngineClient):
    """Runs an ``EngineCore`` in a thread of this process.

    :param core: nobody else uses it from now on
    :param tokenizer: None: outputs bear token ids only
    """

    def __init__(self, core: EngineCore, tokenizer: Tokenizer | None) -> None:
        self.max_model_len = core.limits.max_model_len
        self.max_request_tokens = core.limits.max_request_tokens
        self.max_requests = core.scheduler.config.max_requests
        self._core = core
        engine = TextEngine(core, tokenizer)
        self._accepted = AcceptedRequests(engine.check, lambda: core.clock())
        self._accepted.open(core.scheduler.config, core.limits)
        self._engine_loop = EngineLoop(engine, self)
        # Not queue.Queue: a stream may be collected, and so put its Abort, in the middle of another put.
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ullage-engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = self._closed = False
        self._failure: EngineError | None = None
        self._worked_at = 0.0
        """When its thread was last seen to use a core, or had nothing to do."""

    # ── on the event loop ──

    async def start(self) -> None:
        if self._stopping:
            raise EngineError("the engine was stopped; build a new one")
        self._loop = asyncio.get_running_loop()
        self._engine_loop.last_step_at = time.monotonic()
        self._thread.start()
        self._cpu_use = CpuUse(f"self/task/{self._thread.native_id}")

    async def stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._inbox.put(Stop())
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, STOP_SECONDS)
        if self._thread.is_alive():  # it is a daemon, the process can end without it
            logger.error("a step hangs: gave up after %g s; the engine's memory isn't freed", STOP_SECONDS)
            self._end_all()
        elif not self._closed:
            self._closed = True
            self._core.close()

    def submit(self, request: GenerationRequest, on_end: OnEnd | None = None) -> OutputStream:
        if self._failure is not None:
            raise EngineError(f"the engine has failed: {self._failure.message}")
        if self._loop is None or self._stopping:
            raise EngineError("the engine isn't running")
        mailbox = self._accepted.accept(request, self._core.scheduler.kv_cache.pool.num_free, on_end)
        self._inbox.put(Submit(mailbox.key, request, mailbox.arrived_at))
        return MailboxStream(mailbox, self._leave)

    def check_room(self, *, tenant: str = "", num_requests: int = 1, num_prompt_tokens: int = 0) -> None:
        self._accepted.check_room(tenant, num_requests, num_prompt_tokens)

    def ledger(self) -> LedgerSnapshot:
        return self._core.ledger.snapshot()

    def status(self) -> EngineStatus:
        status = self._accepted.counted(self._engine_loop.status())
        if self._failure is not None:
            return replace(status, healthy=False, state="failed", detail=self._failure.message)
        if self._stopping:
            return replace(status, healthy=False, state="stopped", detail="stopped")
        if not self._thread.is_alive():
            return replace(status, healthy=False, state="starting", detail="not started")
        working = len(self._accepted) > 0
        return replace(status, detail="serving" if working else "idle", seconds_quiet=self._quiet(working))

    def _quiet(self, working: bool) -> float:
        """Whoever asks often sees it grow; only the use of a core since the last time is known."""
        now = time.monotonic()
        if not working or self._cpu_use.is_working():
            self._worked_at = now
        return now - max(self._worked_at, self._engine_loop.last_step_at)

    def figures(self) -> EngineFigures:
        return EngineFigures() if self._closed else self._core.figures()

    def _leave(self, mailbox: Mailbox) -> None:
        if self._accepted.leave(mailbox):
            self._inbox.put(Abort(mailbox.key))

    def _end_all(self) -> None:
        """The engine thread has ended: so do all requests that haven't yet."""
        self._accepted.end_all(self._failure)

    # ── on the engine thread ──

    def _run(self) -> None:
        self._failure = self._engine_loop.run()
        self._call_on_loop(self._end_all)

    def next_command(self, *, wait: bool) -> Command | None:
        try:
            return self._inbox.get(block=wait)
        except queue.Empty:
            return None

    def post(self, started: Sequence[int], events: Sequence[Event]) -> None:
        if started or events:
            self._call_on_loop(lambda: self._accepted.deliver(started, events))

    def _call_on_loop(self, callback: Callable[[], None]) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody is left to tell
            self._loop.call_soon_threadsafe(callback)
