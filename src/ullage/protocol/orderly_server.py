"""uvicorn, with our way to stop: first what was accepted ends, then the port closes; a second signal stops at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import socket
import threading
from abc import abstractmethod
from collections.abc import Iterator
from types import FrameType
from typing import Literal

import uvicorn
from starlette.types import ASGIApp

from ullage.protocol import connection

BACKLOG = 512
DRAIN_LOOK_SECONDS = 0.02
STOP_MARGIN_SECONDS = 5.0
"""After the drain time has run out, how long the last error events may take to be sent."""


def address_of(bound: socket.socket, scheme: Literal["http", "https"] = "http") -> str:
    """``http://host:port``, to be shown or pasted."""
    host, port = bound.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class OrderlyServer(uvicorn.Server):
    """Of an app that counts what is in work. SIGHUP reloads.

    :param http: makes the protocol of a connection; ``h11`` where connections are made otherwise
    :param drain_seconds: how long what was accepted may go on after the first signal
    """

    def __init__(
        self, app: ASGIApp, http: type[asyncio.Protocol] | Literal["h11"], keep_alive_seconds: int, drain_seconds: float
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=http,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # uvicorn's would believe every process of this machine
                backlog=BACKLOG,
                timeout_keep_alive=keep_alive_seconds,
                timeout_graceful_shutdown=math.ceil(STOP_MARGIN_SECONDS),
            )
        )
        logging.getLogger(connection.__name__).setLevel(logging.ERROR)  # a warning for each mistake of a client
        self.cut_off = False
        """Requests had to be ended when the drain time was over."""
        self._drain_seconds = drain_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reloading: asyncio.Task[None] | None = None

    @abstractmethod
    def _take_nothing_new(self) -> None:
        """May be called by a signal's handler, and again."""

    @property
    @abstractmethod
    def _num_in_work(self) -> int: ...

    @abstractmethod
    def _cut_work_off(self) -> None:
        """What still runs ends with an error."""

    @abstractmethod
    async def _reload(self) -> None: ...

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """First what was accepted ends, while the port stays open: whoever comes now is told when to come back."""
        self._take_nothing_new()
        deadline = asyncio.get_running_loop().time() + self._drain_seconds
        while self._num_in_work and not self.force_exit:
            if asyncio.get_running_loop().time() >= deadline:
                self.cut_off = True
                self._cut_work_off()
                break
            await asyncio.sleep(DRAIN_LOOK_SECONDS)
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn would report the tasks that now end with the loop, traceback and all
            logging.getLogger("uvicorn.error").disabled = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Unlike uvicorn's, doesn't raise the signal again at the end: a stop that was asked for is a success."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        previous[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._handle_reload)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a handler
        if self.should_exit:
            self.force_exit = True
            signal.signal(sig, signal.SIG_DFL)  # should even this hang, the next one ends the process
        self.should_exit = True
        self._take_nothing_new()

    def _handle_reload(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a handler
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin_reload)

    def _begin_reload(self) -> None:
        self._reloading = asyncio.create_task(self._reload())
