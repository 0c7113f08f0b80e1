"""A whole engine in a supervised process of its own. What happens to it never happens to the service.

::

    event loop                                          engine process
    submit ── check, count ──▶ socket ────────────────▶ take commands, step, take commands, step, ...
    OutputStream ◀── mailbox ◀── one message per step ──┘

Requests are accepted or refused here, at once. When the process dies, or shows no sign of life, each of its requests
ends with one error; it is killed, and started again after a while. A child has a socket of its own and keys of
requests are never used again, so what a dead one still says reaches nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from dataclasses import dataclass, replace

import zmq

from ullage.base.errors import EngineError, EngineRestartingError, UllageError
from ullage.engine.accepted_requests import AcceptedRequests, Mailbox, MailboxStream
from ullage.engine.child_process import ChildProcess, command_limit
from ullage.engine.client import (
    EngineClient,
    EngineFigures,
    EngineState,
    EngineStatus,
    GenerationRequest,
    OnEnd,
    OutputStream,
)
from ullage.engine.engine_loop import Abort, Stop, Submit
from ullage.engine.output import check_request
from ullage.engine.totals import NOTHING, add_figures, with_totals_of
from ullage.engine.wire import EngineFailed, EngineReady, Opening, ServiceLoaded, StepReport
from ullage.plan.ledger import LedgerSnapshot
from ullage.plan.machine import resident_bytes, settled_bytes

logger = logging.getLogger(__name__)

STOP_SECONDS = 5.0
"""How long ``stop`` waits for the step that runs; one that takes longer is killed."""
MODULE = "ullage.engine.engine_process"
USUAL_LOADING_SECONDS = 5.0
"""What clients are told that a new process takes to load."""


@dataclass(frozen=True, slots=True)
class Supervision:
    """When an engine process is given up, and how often another one is tried. Times in seconds."""

    look_seconds: float = 0.5
    """How often it is looked at."""
    quiet_seconds: float = 6.0
    """It has stalled when it neither says anything nor uses a core for so long."""
    longest_step_seconds: float = 60.0
    """It has stalled, too, when a step uses a core for so long, and ten times as long as any before it."""
    loading_quiet_seconds: float = 30.0
    """As ``quiet_seconds``, while it loads."""
    first_pause_seconds: float = 0.5
    """Before it is started again; doubles from one failure to the next."""
    longest_pause_seconds: float = 30.0
    max_restarts: int = 5
    """Within ``restart_window_seconds``; after that it stays down."""
    restart_window_seconds: float = 600.0


class EngineProcess(EngineClient):
    """Runs the engine in a process of its own. ``open`` starts that process; ``start`` takes it over.

    :param opening: what the process loads
    :param max_requests: as the options in ``opening`` say
    """

    def __init__(
        self,
        opening: Opening,
        max_requests: int,
        *,
        module: str = MODULE,
        supervision: Supervision | None = None,
    ) -> None:
        self.max_requests = max_requests
        self._opening = opening
        self._module = module
        self._supervision = supervision or Supervision()
        self._accepted = AcceptedRequests(self._check, time.monotonic)
        self._child = self._new_child()
        self._state: EngineState = "starting"
        self._detail = "not started"
        self._num_restarts = 0
        self._restarts: deque[float] = deque(maxlen=self._supervision.max_restarts)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._supervising: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._loading: asyncio.Future[EngineReady] | None = None
        self._lost = asyncio.Event()
        """The child has ended, or said that it can't go on."""
        self._failure: UllageError | None = None
        self._heard_at = time.monotonic()
        self._status_before, self._figures_before = NOTHING, EngineFigures()
        """Totals of the processes before this one."""
        self._quiet_seconds = 0.0
        """Without a message and without the use of a core, as the supervision has seen it."""

    # ── loading ──

    def load(self) -> EngineReady:
        """Blocks until the process has loaded. Called once, before ``start``.

        :raises UllageError: why it can't; nothing is left of it
        """
        try:
            ready = self._load(self._child)
        except BaseException:
            self._child.destroy()
            raise
        self._take_over(ready)
        self.max_model_len = ready.limits.max_model_len
        self.max_request_tokens = ready.limits.max_request_tokens
        return ready

    def discard(self) -> None:
        """Ends the process of an engine that is not going to be started."""
        self._child.destroy()

    def _new_child(self) -> ChildProcess:
        child = ChildProcess(self._module, command_limit(self.max_requests))
        try:
            child.send(self._opening)
        except BaseException:
            child.destroy()
            raise
        return child

    def _load(self, child: ChildProcess) -> EngineReady:
        child.send(ServiceLoaded(settled_bytes()))
        return child.wait_until_ready(self._supervision.loading_quiet_seconds)

    def _take_over(self, ready: EngineReady) -> None:
        self._limits, self._with_texts = ready.limits, ready.with_texts
        self._accepted.open(ready.scheduler_config, ready.limits)
        self._ledger = ready.ledger
        self._status = EngineStatus(True, "idle", 0, 0, 0, 0.0)
        self._figures = EngineFigures()

    # ── requests ──

    async def start(self) -> None:
        if self._state != "starting":
            raise EngineError("the engine was stopped; build a new one")
        self._loop = asyncio.get_running_loop()
        self._listen()
        self._supervising = asyncio.create_task(self._supervise())

    async def stop(self) -> None:
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        was_ready = self._state == "ready"
        self._state, self._detail = "stopped", "stopped"
        if self._supervising is not None:
            self._supervising.cancel()
            await asyncio.wait([self._supervising])
        if was_ready:
            await self._end_in_good_order()
        self._accepted.end_all(None)
        self._child.kill()
        if self._loading is not None:  # it uses the child on a thread of its own, until it sees that it has ended
            await asyncio.wait([self._loading])
        await asyncio.to_thread(self._child.destroy)

    def submit(self, request: GenerationRequest, on_end: OnEnd | None = None) -> OutputStream:
        if self._state in ("stalled", "restarting"):
            seconds = self._supervision.first_pause_seconds + USUAL_LOADING_SECONDS
            raise EngineRestartingError(f"the engine is {self._state}: {self._detail}", retry_after_seconds=seconds)
        if self._state != "ready":
            running = "isn't running" if self._state in ("starting", "stopped") else f"is {self._state}"
            raise EngineError(f"the engine {running}: {self._detail}")
        mailbox = self._accepted.accept(request, self._status.num_free_blocks, on_end)
        self._send(Submit(mailbox.key, request, mailbox.arrived_at))
        return MailboxStream(mailbox, self._leave)

    def check_room(self, *, tenant: str = "", num_requests: int = 1, num_prompt_tokens: int = 0) -> None:
        self._accepted.check_room(tenant, num_requests, num_prompt_tokens)

    def ledger(self) -> LedgerSnapshot:
        return self._ledger

    def status(self) -> EngineStatus:
        silent_seconds = time.monotonic() - self._heard_at
        if self._state == "ready":
            detail = "serving" if len(self._accepted) else "idle"
            seconds_since_step = self._status.seconds_since_step + silent_seconds
            # An idle one owes a message each second; one that works may be silent as long as it uses a core.
            quiet_seconds = self._quiet_seconds if len(self._accepted) else silent_seconds
            healthy, status = True, replace(self._status, detail=detail, seconds_since_step=seconds_since_step)
        else:
            healthy, quiet_seconds = False, 0.0
            status = replace(self._status, num_running=0, num_waiting=0, detail=self._detail)
        return replace(
            with_totals_of(self._status_before, self._accepted.counted(status)),
            healthy=healthy,
            state=self._state,
            num_restarts=self._num_restarts,
            seconds_quiet=quiet_seconds,
        )

    def figures(self) -> EngineFigures:
        return add_figures(self._figures_before, self._figures)

    def resident_bytes(self) -> int:
        with contextlib.suppress(OSError):
            return resident_bytes(self._child.pid)
        return 0

    def _check(self, request: GenerationRequest) -> None:
        check_request(self._limits, request, with_texts=self._with_texts)

    def _leave(self, mailbox: Mailbox) -> None:
        """May be called by the collector of garbage: on any thread, in the middle of anything."""
        if self._accepted.leave(mailbox):
            assert self._loop is not None
            with contextlib.suppress(RuntimeError):  # the loop was closed, and the process ended before
                self._loop.call_soon_threadsafe(self._send, Abort(mailbox.key))

    def _send(self, command: Submit | Abort) -> None:
        if self._state != "ready":  # an abort that comes too late
            return
        assert self._loop is not None
        try:
            self._child.send(command)
        except EngineError as error:
            self._lose(error)
        if self._child.has_messages:  # sending takes the sign that there is something to read
            self._loop.call_soon(self._receive)

    # ── what the process says ──

    def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._lost.clear()
        self._failure = None
        loop.add_reader(self._child.socket_fd, self._receive)
        loop.add_reader(self._child.log_fd, self._read_log)
        self._heard_at = time.monotonic()
        self._state, self._detail = "ready", ""
        loop.call_soon(self._receive)

    def _stop_listening(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._child.socket_fd)
        loop.remove_reader(self._child.log_fd)

    def _read_log(self) -> None:
        if not self._child.read_log():
            asyncio.get_running_loop().remove_reader(self._child.log_fd)
            self._lost.set()

    def _receive(self) -> None:
        if self._child.socket.closed:
            return
        try:
            messages = self._child.receive()
        except EngineError as error:
            self._lose(error)
            return
        for message in messages:
            self._heard_at = time.monotonic()
            if isinstance(message, EngineFailed):
                self._lose(message.error)
                continue
            assert isinstance(message, StepReport)
            self._status = message.status
            self._figures = message.figures or self._figures
            reserved, used, cached = message.kv_bytes
            self._ledger = replace(self._ledger, kv_reserved_bytes=reserved, kv_used_bytes=used, kv_cached_bytes=cached)
            self._accepted.deliver(message.started, message.events)

    def _lose(self, failure: UllageError) -> None:
        self._failure = failure
        self._lost.set()

    # ── supervision ──

    async def _supervise(self) -> None:
        while True:
            reason = await self._watch()
            self._give_up(reason)
            while self._state in ("stalled", "restarting"):
                await self._restart()
            if self._state == "failed":
                return

    async def _watch(self) -> str:
        """Returns why the process is no good any more."""
        rules = self._supervision
        heard_at, step_seconds, longest_seconds = self._heard_at, 0.0, 0.0
        self._quiet_seconds = 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rules.look_seconds):
                    await self._lost.wait()
                return self._why_it_ended()
            self._receive()
            working = self._child.is_working()
            if self._heard_at > heard_at:
                longest_seconds = max(longest_seconds, step_seconds)
                heard_at, step_seconds, self._quiet_seconds = self._heard_at, 0.0, 0.0
                continue
            # Only time that this loop has seen counts: it may have slept itself.
            step_seconds += rules.look_seconds
            self._quiet_seconds = 0.0 if working else self._quiet_seconds + rules.look_seconds
            if self._quiet_seconds >= rules.quiet_seconds:
                return f"the engine process did nothing for {self._quiet_seconds:g} s"
            if step_seconds >= max(rules.longest_step_seconds, 10 * longest_seconds):
                return f"a step of the engine didn't end in {step_seconds:g} s"

    def _why_it_ended(self) -> str:
        self._receive()
        return self._child.how_it_ended() if self._failure is None else self._failure.message

    def _give_up(self, reason: str) -> None:
        """At once: readiness goes down, and every request gets its end."""
        logger.error("%s", reason)
        self._stop_listening()
        self._receive()
        self._state, self._detail = "restarting" if self._lost.is_set() else "stalled", reason
        self._accepted.end_all(EngineError(reason))
        self._status_before, self._figures_before = self.status(), self.figures()
        self._status, self._figures = NOTHING, EngineFigures()
        self._ledger = replace(self._ledger, kv_reserved_bytes=0, kv_used_bytes=0, kv_cached_bytes=0)

    async def _restart(self) -> None:
        """One try. Afterwards the state is ``ready``, ``failed``, or ``restarting`` still."""
        rules, now, reason = self._supervision, time.monotonic(), self._detail
        while self._restarts and now - self._restarts[0] > rules.restart_window_seconds:
            self._restarts.popleft()
        await asyncio.to_thread(self._child.destroy)
        self._state = "restarting"
        if len(self._restarts) >= rules.max_restarts:
            self._state = "failed"
            self._detail = f"gave up after {len(self._restarts)} restarts: {reason}"
            logger.error("%s", self._detail)
            return
        pause = min(rules.first_pause_seconds * 2 ** len(self._restarts), rules.longest_pause_seconds)
        await asyncio.sleep(pause)
        self._restarts.append(time.monotonic())
        self._num_restarts += 1
        try:
            self._child = self._new_child()
            self._loading = asyncio.ensure_future(asyncio.to_thread(self._load, self._child))
            self._take_over(await asyncio.shield(self._loading))
        except (UllageError, OSError, zmq.ZMQError) as error:  # the system may refuse a process, a file, a socket
            self._detail = str(error)
            logger.error("the engine process can't be started again: %s", error)
            return
        logger.warning("the engine process runs again")
        self._listen()

    async def _end_in_good_order(self) -> None:
        """The process ends its requests, which may take a step, then itself."""
        if self._child.socket.closed or self._lost.is_set():
            return
        with contextlib.suppress(EngineError, TimeoutError):
            self._child.send(Stop())
            async with asyncio.timeout(STOP_SECONDS):
                await self._lost.wait()
        self._receive()
        self._stop_listening()
