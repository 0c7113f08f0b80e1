"""Engines that are measured: each in a process of its own, which is stopped while another one's turn is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from ullage.base.errors import EngineError
from ullage.plan.machine import resident_bytes

ANSWER_SECONDS = 1200
"""The longest that an engine may need for anything, its start included."""
SAMPLE_SECONDS = 0.05
CLOSE_SECONDS = 10

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Answer:
    seconds: float
    """From the call until the last token of the last sequence."""
    decode_seconds: float | None
    """From a single sequence's first token to its last; None where the engine can't tell."""


class Subject(Protocol):
    """One engine, ready to generate."""

    name: str
    start_seconds: float
    """From the start of its process to the first token."""

    def generate(self, prompts: Prompts, new_tokens: int) -> Answer:
        """:raises EngineError: it failed; it can't be used any more"""
        ...

    def describe(self) -> dict[str, Any]:
        """What it says of itself (``worker.describe``; ``version`` alone for peers)."""
        ...

    def peak_resident_bytes(self, prompts: Prompts, new_tokens: int) -> int:
        """The most that its process held while it generated."""
        ...

    def close(self) -> None: ...


Launch = Callable[[], Subject]


class ProcessSubject:
    """A subject behind the conversation of ``peer_driver.py``.

    :param command: starts it
    :param opening: the first line it is given
    :raises EngineError: it didn't come up; the message ends with its last words
    """

    def __init__(self, name: str, command: Sequence[str], opening: Mapping[str, Any]) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        began = time.perf_counter()
        self._process = subprocess.Popen(
            command, stdin=-1, stdout=-1, stderr=self._errors, text=True, process_group=0
        )  # a group of its own, which the system wakes and ends if we are killed while it is stopped
        try:
            self._description = self._ask(opening)
        except BaseException:
            self.close()
            raise
        self.start_seconds = time.perf_counter() - began
        self._signal(signal.SIGSTOP)

    def generate(self, prompts: Prompts, new_tokens: int) -> Answer:
        self._signal(signal.SIGCONT)
        answer = self._ask({"prompts": prompts, "new_tokens": new_tokens})
        self._signal(signal.SIGSTOP)
        return Answer(answer["seconds"], answer["decode_seconds"])

    def describe(self) -> dict[str, Any]:
        self._signal(signal.SIGCONT)
        description = self._ask({})
        self._signal(signal.SIGSTOP)
        return description

    def peak_resident_bytes(self, prompts: Prompts, new_tokens: int) -> int:
        samples = [resident_bytes(self._process.pid)]
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(SAMPLE_SECONDS):
                samples.append(resident_bytes(self._process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            self.generate(prompts, new_tokens)
            samples.append(resident_bytes(self._process.pid))
        finally:
            ended.set()
            watcher.join()
        return max(samples)

    def close(self) -> None:
        """Ends it, and what it started."""
        self._signal(signal.SIGCONT)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_SECONDS)
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._errors.close()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)  # it leads a group of its own

    def _ask(self, line: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        limit = threading.Timer(ANSWER_SECONDS, self._signal, [signal.SIGKILL])
        limit.start()
        try:
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            limit.cancel()
        if not answer:
            code = self._process.wait()
            raise EngineError(f"{self.name} ended with exit code {code}: {self._last_words()}")
        result: dict[str, Any] = json.loads(answer)
        return result

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        told = [line for line in lines if "Error" in line or "error:" in line]
        return (told or lines or ["it said nothing"])[-1].strip()[:300]
