"""What runs in the engine process: ``python -m ullage.engine.engine_process ADDRESS``.

One thread: commands are taken from the socket between steps, and each step's outputs leave as one message. That very
loop also says that it is alive while there is nothing to do, so the sign can't outlive the engine.
"""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import zmq

from ullage.base.errors import EngineError, UllageError
from ullage.base.logs import set_up_logging
from ullage.engine import wire
from ullage.engine.build import assemble_core, check_tokenizer
from ullage.engine.client import EngineFigures
from ullage.engine.core import EngineCore
from ullage.engine.engine_loop import Command, EngineLoop, Event
from ullage.engine.output import TextEngine
from ullage.engine.wire import EngineFailed, EngineReady, Opening, ServiceLoaded, StepReport
from ullage.models.tokenizer import Tokenizer
from ullage.plan.memory import Plan

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 1.0
FIGURES_SECONDS = 0.5
"""How often a busy engine tells its larger figures."""

Loaded = tuple[EngineCore, Tokenizer | None, Plan | None, str | None]
"""What to run, for texts, the plan, and a warning."""
Load = Callable[[Opening, Callable[[], int]], Loaded]
"""Loads; its second argument waits for the bytes that the service itself holds."""


class Parent:
    """The service, seen from its engine.

    :param address: to be reached at
    """

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.bind(address)
        self.loop: EngineLoop | None = None
        self._core: EngineCore | None = None
        self._figures_due_at = 0.0

    def serve(self, core: EngineCore, tokenizer: Tokenizer | None) -> EngineError | None:
        self._core = core
        self.loop = EngineLoop(TextEngine(core, tokenizer), self)
        return self.loop.run()

    def send(self, message: object) -> None:
        self._socket.send(wire.encode(message))

    def receive(self) -> Any:
        return wire.decode(self._socket.recv())

    def next_command(self, *, wait: bool) -> Command | None:
        if wait and not self._socket.poll(int(HEARTBEAT_SECONDS * 1000)):
            self.post((), ())
            return None
        try:
            command: Command = wire.decode(self._socket.recv(zmq.NOBLOCK))
        except zmq.Again:
            return None
        return command

    def post(self, started: Sequence[int], events: Sequence[Event]) -> None:
        assert self.loop is not None
        assert self._core is not None
        books = self._core.ledger.snapshot()
        kv_bytes = (books.kv_reserved_bytes, books.kv_used_bytes, books.kv_cached_bytes)
        self.send(StepReport(started, events, self.loop.status(), kv_bytes, self._figures_if_due()))

    def _figures_if_due(self) -> EngineFigures | None:
        assert self._core is not None
        now = time.monotonic()
        if self._core.has_work and now < self._figures_due_at:
            return None
        self._figures_due_at = now + FIGURES_SECONDS
        return self._core.figures()

    def close(self) -> None:
        """What was sent still arrives."""
        self._socket.close()
        self._context.term()


def load_model(opening: Opening, service_bytes: Callable[[], int]) -> Loaded:
    """As ``build_engine`` does, but for what only the service needs."""
    from ullage.models.open_model import open_model

    model = open_model(Path(opening.model_path))
    try:
        tokenizer = model.tokenizer()
        check_tokenizer(model.path, tokenizer, model.spec)
        built = assemble_core(model, tokenizer, opening.options, service_bytes=service_bytes())
    finally:
        model.close()
    return built.core, tokenizer, built.plan, built.warning


def run(address: str, load: Load) -> int:
    """The whole life of the engine process; returns its exit code."""
    die_with_parent()
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
    ):  # whoever sends one to all processes means the service
        signal.signal(number, signal.SIG_IGN)
    set_up_logging("debug", "json")  # what of it is said is the service's to choose
    parent = Parent(address)

    def service_bytes() -> int:
        loaded: ServiceLoaded = parent.receive()
        return loaded.resident_bytes

    try:
        core, tokenizer, plan, warning = load(parent.receive(), service_bytes)
    except UllageError as error:
        parent.send(EngineFailed(error))
        parent.close()
        return 1
    parent.send(
        EngineReady(
            limits=core.limits,
            scheduler_config=core.scheduler.config,
            with_texts=tokenizer is not None,
            ledger=core.ledger.snapshot(),
            plan=plan,
            runner_name=core.runner.name,
            warning=warning,
        )
    )
    gc.collect()
    gc.freeze()  # what is loaded stays: no need to look through it again and again
    failure = parent.serve(core, tokenizer)
    if failure is not None:
        parent.send(EngineFailed(failure))
    parent.close()
    return 0 if failure is None else 1


def die_with_parent() -> None:
    """The system kills this process when the pipe at its standard input breaks, whatever it is doing then, even if it
    was stopped.
    """
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([0], [], [], 0)[0]:  # it was broken before
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], load_model))
