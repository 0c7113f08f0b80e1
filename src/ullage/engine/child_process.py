"""One run of the engine process, seen from the service: started, spoken to, watched, ended.

The child's standard input is a pipe that nobody writes to: when this process ends, however it does, the pipe breaks and
the system kills the child. Its output is a pipe too: what it logs comes through it, and its end is the child's.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import zmq

from ullage.base.errors import EngineError
from ullage.engine import wire
from ullage.engine.cpu_use import CpuUse
from ullage.engine.wire import EngineFailed, EngineReady

logger = logging.getLogger(__name__)

MAX_MESSAGES = 1000
"""Messages that wait for the service at most; the engine pauses then."""
MAX_LOG_LINE_BYTES = 1 << 16
EXIT_SECONDS = 1.0
"""From the end of its output to its own."""
MAX_ADDRESS_BYTES = 100
"""The system's limit for the address of a local socket is 108 bytes."""


class ChildProcess:
    """A child that was started just now.

    :param module: what it runs; gets the address to connect to as its argument
    :param max_commands: that are under way to it at one time, at most
    """

    def __init__(self, module: str, max_commands: int) -> None:
        self._folder = tempfile.mkdtemp(prefix="ullage-")  # for this user only
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.PAIR)
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.RCVHWM, MAX_MESSAGES)
        self.socket.set(zmq.SNDHWM, max_commands)
        self._last_line = ""
        self._log_rest = b""
        self._ended = False
        self._destroying = threading.Lock()
        try:
            self._process = self._start(module)
        except BaseException:
            self._close_socket()
            raise
        self._cpu_use = CpuUse(str(self.pid))
        assert self._process.stdout is not None
        self.log_fd = self._process.stdout.fileno()
        os.set_blocking(self.log_fd, False)

    def _start(self, module: str) -> subprocess.Popen[bytes]:
        address = f"{self._folder}/engine"
        if len(os.fsencode(address)) > MAX_ADDRESS_BYTES:
            raise EngineError(
                f"{self._folder} is too long for the address of a socket", hint="set TMPDIR to a shorter path"
            )
        # The child binds: on this side messages can then wait for it from the start.
        self.socket.set(zmq.RECONNECT_IVL, 10)
        self.socket.connect(f"ipc://{address}")
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, f"ipc://{address}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            start_new_session=True,  # Ctrl-C is for the service, which then ends the child in good order
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def socket_fd(self) -> int:
        """Readable when something changed at the socket: then all that there is must be received."""
        return int(self.socket.get(zmq.FD))

    @property
    def has_messages(self) -> bool:
        return bool(int(self.socket.get(zmq.EVENTS)) & zmq.POLLIN)

    def send(self, message: object) -> None:
        """:raises EngineError: it takes nothing more; bounds elsewhere keep that from happening while it runs"""
        try:
            self.socket.send(wire.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            raise EngineError("the engine process takes no more commands") from None

    def receive(self) -> list[Any]:
        """All messages there are."""
        messages = []
        with contextlib.suppress(zmq.Again):
            while True:
                messages.append(wire.decode(self.socket.recv(zmq.NOBLOCK)))
        return messages

    def read_log(self) -> bool:
        """Passes on what the child logged. False: it has ended."""
        with contextlib.suppress(BlockingIOError):
            while not self._ended:
                data = os.read(self.log_fd, 1 << 16)
                self._ended = not data
                *lines, self._log_rest = (self._log_rest + data).split(b"\n")
                if self._ended or len(self._log_rest) > MAX_LOG_LINE_BYTES:
                    lines, self._log_rest = [*lines, self._log_rest], b""
                for line in lines:
                    self._log(line[:MAX_LOG_LINE_BYTES].decode(errors="replace").rstrip())
        return not self._ended

    def _log(self, line: str) -> None:
        """Lines are those of ``JsonFormatter``; others are what the interpreter writes on its way down."""
        if not line:
            return
        try:
            told = json.loads(line)
            name, level, message = (
                told["logger"],
                logging.getLevelNamesMapping()[told["level"].upper()],
                told["message"],
            )
        except (ValueError, TypeError, KeyError):
            name, level, message, told = logger.name, logging.WARNING, line, {}
        self._last_line = message
        origin = logging.getLogger(name)
        if origin.isEnabledFor(level):
            args = (self.pid, message)
            record = origin.makeRecord(name, level, "", 0, "engine process %d: %s", args, None)
            record.exc_text = told.get("traceback")
            origin.handle(record)

    def is_working(self) -> bool:
        """Whether it ran, or would have if it had got a core, since the last time this was asked."""
        return self._cpu_use.is_working()

    def wait_until_ready(self, quiet_seconds: float) -> EngineReady:
        """Blocks until it has loaded. May be called on any thread, as long as it's one at a time.

        :param quiet_seconds: it has hung when it does nothing for so long
        :raises UllageError: what the child says why it can't; EngineError when it ended or hangs
        """
        poller = select.poll()
        poller.register(self.socket_fd, select.POLLIN)
        poller.register(self.log_fd, select.POLLIN)
        quiet_since = time.monotonic()
        while True:
            alive = self.read_log()
            for message in self.receive():
                if isinstance(message, EngineFailed):
                    raise message.error
                assert isinstance(message, EngineReady)
                shutil.rmtree(self._folder, ignore_errors=True)
                return message
            if not alive:
                raise EngineError(f"{self.how_it_ended()} while it was loading")
            if self.is_working():
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since > quiet_seconds:
                raise EngineError(f"the engine process did nothing for {quiet_seconds:g} s while it was loading")
            poller.poll(100)

    def how_it_ended(self) -> str:
        """In words; for a child that has ended."""
        try:
            code = self._process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return "the engine process closed its output"
        if code < 0:
            name = next((number.name for number in signal.Signals if number == -code), f"signal {-code}")
            return f"the engine process was ended by {name}"
        last_words = f": {self._last_line}" if self._last_line else ""
        return f"the engine process ended with exit code {code}{last_words}"

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._process.poll() is None:
                os.killpg(self.pid, signal.SIGKILL)

    def destroy(self) -> None:
        """Ends it if it still runs; nothing of it is left afterwards. Idempotent, from any thread. Takes as long as the
        system needs to free its memory.
        """
        with self._destroying:
            self.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()
            self._close_socket()

    def _close_socket(self) -> None:
        self.socket.close()
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)


def command_limit(max_requests: int) -> int:
    """Commands under way at one time: for each request its own and its reader's leaving, and as many again of requests
    that have ended meanwhile.
    """
    return 4 * max_requests + 8
