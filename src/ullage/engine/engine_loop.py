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

from ullage.base.errors import EngineError
from ullage.engine.client import EngineStatus, GenerationOutput, GenerationRequest
from ullage.engine.output import TextEngine
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
        wait = not self._engine.has_work
        while True:
            command = self._users.next_command(wait=wait)
            if command is None:
                return True
            if wait:
                wait, self.last_step_at = False, time.monotonic()
            if isinstance(command, Stop):
                return False
            if isinstance(command, Submit):
                request_id = self._engine.add_request(command.request, command.arrived_at)
                self._keys[request_id] = command.key
                self._request_ids[command.key] = request_id
            elif command.key in self._request_ids:
                self._abort(self._request_ids[command.key])

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
