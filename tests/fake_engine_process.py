"""What ``python -m tests.fake_engine_process ADDRESS`` runs: a real engine process on the runner that proves the blocks
right, which fails in the way that its model's name says.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from tests.fake_engine import make_core
from tests.scripted_engine import ByteTokenizer

from ullage.base.errors import PlanError
from ullage.engine.engine_process import Loaded, run
from ullage.engine.fake_runner import FakeRunner
from ullage.engine.step import SampledToken, ScheduledStep
from ullage.engine.wire import Opening

HANG_TOKEN, SPIN_TOKEN, RAISE_TOKEN, EXIT_TOKEN, SLOW_TOKEN = 101, 102, 103, 104, 105
"""A prompt that ends with one of these makes its step do so."""


class FailingRunner(FakeRunner):
    def execute(self, step: ScheduledStep) -> list[SampledToken]:
        for request in step.requests:
            if request.num_computed_tokens + len(request.token_ids) == request.num_prompt_tokens:
                self._fail(request.token_ids[-1])
        return super().execute(step)

    def _fail(self, token_id: int) -> None:
        if token_id == HANG_TOKEN:
            threading.Event().wait()
        elif token_id == SPIN_TOKEN:
            spin(3600)
        elif token_id == SLOW_TOKEN:
            spin(3)
        elif token_id == EXIT_TOKEN:
            os._exit(7)
        elif token_id == RAISE_TOKEN:
            raise ZeroDivisionError("the device fell off")


def spin(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def load(opening: Opening, service_bytes: Callable[[], int]) -> Loaded:
    """The model's path is ``what to do:a file``; the file counts the starts."""
    name, _, count_path = opening.model_path.partition(":")
    with open(count_path, "a") as file:
        file.write("x")
    num_starts = os.path.getsize(count_path)
    assert service_bytes() > 0
    if name == "refuse" or (name == "refuse-later" and num_starts > 1):
        raise PlanError("no memory at all", hint="buy some")
    if name == "exit":
        sys.stderr.write("the loader fell over\n")
        sys.exit(3)
    if name == "abort":
        os.kill(os.getpid(), signal.SIGABRT)
    if name == "hang":
        ctypes.CDLL(None).pause()
    core = make_core(num_blocks=64, max_num_seqs=8, max_waiting_requests=24, runner_class=FailingRunner)
    return core, ByteTokenizer(), None, None


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], load))
