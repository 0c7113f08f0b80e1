"""The engine's half: takes commands, runs a step, posts what came of it, again and again.

The same loop runs on a thread beside the event loop (``embedded.py``) and as a process of its own
(``engine_process.py``); they differ in the way commands come in and outputs go out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ullage.base.errors import EngineError, RequestError
from ullage.engine.client import EngineStatus, FinishReason, GenerationOutput, GenerationRequest
from ullage.engine.compiling import CompilingRequests
from ullage.engine.grammars import Matcher
from ullage.engine.output import TextEngine, nothing_yet
from ullage.engine.scheduler import AbortReason

logger = logging.getLogger(__name__)

Event = tuple[int, GenerationOutput]
"""An output, and the key of its request."""


@dataclass(frozen=True, slots=True)
class Submit:
    key: int
    """What its sender calls the request."""
    request: GenerationRequest
    arrived_at: float
    """By the clock of the engine's core, which all processes of a system share."""


@dataclass(frozen=True, slots=True)
class Abort:
    key: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends what still runs, then the loop."""


Command = Submit | Abort | Stop


class EngineUsers(Protocol):
    """Those who send commands and get outputs, wherever they are."""

    def next_command(self, *, wait: bool) -> Command | None:
        """The next command; None when there is none now. With ``wait`` it may sleep for one, and may return None."""
        ...

    def post(self, started: Sequence[int], events: Sequence[Event]) -> None:
        """Called after each step, and whenever commands have ended requests.

        :param started: keys of requests that left the queue
        """
        ...


class EngineLoop:
    """Belongs to the thread that calls ``run``; ``status`` may be asked from any."""

    def __init__(self, engine: TextEngine, users: EngineUsers) -> None:
        self.last_step_at = time.monotonic()
        """When the last step ended, or when it began to work after a time without requests."""
        self._engine = engine
        self._users = users
        self._keys: dict[int, int] = {}
        self._request_ids: dict[int, int] = {}
        self._compiling = CompilingRequests(engine)
        self._events: list[Event] = []

    def run(self) -> EngineError | None:
        """Until told to stop. One of the three doors where any exception is met: whatever a step raises is returned, so
        that every request gets its end.
        """
        try:
            while self._take_commands():
                if self._engine.has_work:
                    self._step()
                    self._post()
                elif self._events:
                    self._post()
            for request_id in self._engine.request_ids:
                self._abort(request_id, "shutdown")
            for submit in self._compiling.leave_all():
                self._end_early(submit, "abort")
            self._post()
        except Exception as error:
            logger.exception("the engine failed")
            return EngineError(error.message if isinstance(error, EngineError) else f"{type(error).__name__}: {error}")
        return None

    def status(self) -> EngineStatus:
        detail = "serving" if self._engine.has_work else "idle"
        status = self._engine.core.status(detail=detail)
        return replace(status, seconds_since_step=time.monotonic() - self.last_step_at)

    def _take_commands(self) -> bool:
        """Obeys all commands there are; sleeps until the first while there is no work. False: stop."""
        while True:
            idle = not self._engine.has_work and not self._events
            if len(self._compiling):
                self._take_compiled(wait=idle)
            wait = idle and not len(self._compiling) and not self._engine.has_work and not self._events
            command = self._users.next_command(wait=wait)
            if command is None:
                return True
            if wait:
                self.last_step_at = time.monotonic()
            if isinstance(command, Stop):
                return False
            if isinstance(command, Submit):
                if command.request.sampling.constraint is None:
                    self._add(command)
                else:
                    self._compiling.begin(command)
            elif (submit := self._compiling.leave(command.key)) is not None:
                self._end_early(submit, "abort")
            elif command.key in self._request_ids:
                self._abort(self._request_ids[command.key])

    def _take_compiled(self, *, wait: bool) -> None:
        for submit, result in self._compiling.take(wait=wait):
            if isinstance(result, RequestError):
                self._end_early(submit, "error", result)
            else:
                self._add(submit, result)

    def _add(self, submit: Submit, matcher: Matcher | None = None) -> None:
        request_id = self._engine.add_request(submit.request, submit.arrived_at, matcher)
        self._keys[request_id] = submit.key
        self._request_ids[submit.key] = request_id

    def _end_early(self, submit: Submit, reason: FinishReason, error: RequestError | None = None) -> None:
        """The end of a request that the core never saw."""
        self._events.append((submit.key, replace(nothing_yet(submit.request), finish_reason=reason, error=error)))

    def _step(self) -> None:
        for request_id, output in self._engine.step():
            self._add_event(request_id, output)
        self.last_step_at = time.monotonic()

    def _abort(self, request_id: int, reason: AbortReason = "client") -> None:
        output = self._engine.abort(request_id, reason)
        if output is not None:
            self._add_event(request_id, output)

    def _add_event(self, request_id: int, output: GenerationOutput) -> None:
        key = self._keys[request_id]
        self._events.append((key, output))
        if output.finish_reason is not None:
            del self._keys[request_id], self._request_ids[key]

    def _post(self) -> None:
        started = [self._keys[i] for i in self._engine.core.take_started() if i in self._keys]
        events, self._events = self._events, []
        self._users.post(started, events)
