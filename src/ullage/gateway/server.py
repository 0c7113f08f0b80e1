"""Runs the gateway on a port until a signal says stop, and stops in good order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import cast

import uvicorn

from ullage.base.errors import ConfigError
from ullage.gateway.app import create_app
from ullage.gateway.config import GatewayConfig
from ullage.gateway.gateway import Gateway
from ullage.protocol import connection

BACKLOG = 512
FILES_BESIDE_CONNECTIONS = 64
DRAIN_LOOK_SECONDS = 0.02
STOP_MARGIN_SECONDS = 5.0
"""After the drain time has run out, how long the last error events may take to be sent."""


def bind(config: GatewayConfig) -> socket.socket:
    """:raises ConfigError: the address is in use, not ours, or not an address"""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        where = f"{config.host}:{config.port}"
        raise ConfigError(f"can't listen on {where}: {error}", hint="see --host and --port") from error


def address_of(bound: socket.socket) -> str:
    """``http://host:port``, to be shown or pasted."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(gateway: Gateway, on_ready: Callable[[str], None]) -> int:
    """Serves until SIGTERM or SIGINT: then takes nothing new, lets running requests end within ``drain_seconds`` and
    ends the rest with an error. A second signal stops at once. SIGHUP reads the file of the replicas anew.

    :param on_ready: told the address as soon as requests are answered
    :returns: the exit code: 0 when all that was accepted came to its end, 1 when something was cut off
    :raises ConfigError: the port can't be had, or the system allows too few open files
    """
    config = gateway.config
    allow_open_files(config.max_connections + config.max_concurrent_requests + FILES_BESIDE_CONNECTIONS)
    with bind(config) as bound:
        server = Server(gateway, on_ready)
        server.run(sockets=[bound])
    return 1 if server.force_exit or server.cut_off else 0


def allow_open_files(num_files: int) -> None:
    """Raises this process's own limit where it is lower.

    :raises ConfigError: the system's limit is lower
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != hard < num_files:
        raise ConfigError(
            f"max_connections and max_concurrent_requests need {num_files} open files, the system allows {hard}",
            hint="lower them, or raise the limit (ulimit -n)",
        )
    if resource.RLIM_INFINITY != soft < num_files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (num_files, hard))


class Server(uvicorn.Server):
    """uvicorn, with our way to stop."""

    def __init__(self, gateway: Gateway, on_ready: Callable[[str], None]) -> None:
        config = gateway.config
        connections = partial(connection.Connection, limits=config, on_refusal=gateway.note_refusal)
        super().__init__(
            uvicorn.Config(
                create_app(gateway),
                http=cast(type[asyncio.Protocol], connections),
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=config.keep_alive_seconds,
                timeout_graceful_shutdown=math.ceil(STOP_MARGIN_SECONDS),
            )
        )
        logging.getLogger(connection.__name__).setLevel(logging.ERROR)  # a warning for each mistake of a client
        self.cut_off = False
        """Requests had to be ended when the drain time was over."""
        self._gateway = gateway
        self._on_ready = on_ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reloading: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if sockets:
            self._on_ready(address_of(sockets[0]))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """First what was accepted ends, while the port stays open: whoever comes now is told when to come back."""
        in_work = self._gateway.in_work
        in_work.stopping = True
        deadline = asyncio.get_running_loop().time() + self._gateway.config.drain_seconds
        while in_work.num_requests and not self.force_exit:
            if asyncio.get_running_loop().time() >= deadline:
                self.cut_off = True
                in_work.cut_off()
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

    def _handle_reload(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a handler
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin_reload)

    def _begin_reload(self) -> None:
        self._reloading = asyncio.create_task(self._gateway.reload())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a handler
        if self.should_exit:
            self.force_exit = True
            signal.signal(sig, signal.SIG_DFL)  # should even this hang, the next one ends the process
        self.should_exit = True
        self._gateway.in_work.stopping = True
