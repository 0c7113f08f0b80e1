"""Runs an app on a port until a signal says stop, and stops in good order."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import resource
import socket
from collections.abc import Callable

from fastapi import FastAPI

from ullage.base.errors import ConfigError, UllageError
from ullage.protocol import connection
from ullage.protocol.orderly_server import BACKLOG, OrderlyServer, address_of
from ullage.service.config import ServiceConfig
from ullage.service.service import Service
from ullage.service.tls import ServedContext, follow_certificate, server_context

MAX_PORT = 65535
FAILURE_EXIT_CODE = 1
FILES_BESIDE_CONNECTIONS = 64
TLS_CLOSE_SECONDS = 5.0


def bind(config: ServiceConfig) -> socket.socket:
    """Takes the port, before anything slow is loaded.

    :raises ConfigError: the address is in use, not ours, or not an address
    """
    where = f"{config.host}:{config.port}"
    if config.port > MAX_PORT:  # the resolver would wrap it around in silence
        raise ConfigError(f"{config.port} is not a port", hint=f"ports end at {MAX_PORT}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"{where} is not an address to listen on: {error}", hint="see --host and --port") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        in_use = error.errno == errno.EADDRINUSE
        hint = "stop the other program, or choose another --port (0 picks a free one)" if in_use else "see --host"
        raise ConfigError(f"can't listen on {where}: {error.strerror}", hint=hint) from error
    return bound


def serve(
    app: FastAPI,
    config: ServiceConfig,
    *,
    bound: socket.socket | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> int:
    """Serves until SIGTERM or SIGINT: then takes nothing new, lets running requests end within ``drain_seconds``, ends
    the rest with an error, stops the engine. A second signal stops at once. SIGHUP reloads settings.

    :param bound: from ``bind``, where the port was taken early
    :param on_ready: told the address as soon as requests are answered
    :returns: the exit code: 0 when all that was accepted came to its end, 1 when something was cut off or the engine
        had failed
    :raises ConfigError: the port can't be had
    """
    allow_open_files(config.max_connections + FILES_BESIDE_CONNECTIONS)
    bound = bound or bind(config)
    with bound:
        server = Server(app, config, on_ready)
        gc.collect()
        gc.freeze()  # what is loaded stays: looking through it again and again would hold up every stream
        server.run(sockets=[bound])
    return FAILURE_EXIT_CODE if server.force_exit or server.cut_off or server.engine_failed else 0


def allow_open_files(num_files: int) -> None:
    """Raises this process's own limit where it is lower.

    :raises ConfigError: the system's limit is lower
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != hard < num_files:
        raise ConfigError(
            f"max_connections needs {num_files} open files, the system allows {hard}",
            hint="lower max_connections, or raise the limit (ulimit -n)",
        )
    if resource.RLIM_INFINITY != soft < num_files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (num_files, hard))


class Server(OrderlyServer):
    """Of one engine's service."""

    def __init__(self, app: FastAPI, config: ServiceConfig, on_ready: Callable[[str], None] | None = None) -> None:
        # "h11": connections are our own
        super().__init__(app, "h11", config.keep_alive_seconds, config.drain_seconds)
        self._service: Service = app.state.service
        context = server_context(config)
        self._tls = None if context is None else ServedContext.of(context)
        if self._tls is not None:
            self._service.reloads.register(follow_certificate(self._tls, config))
        self.engine_failed = False
        self._handshake_seconds = config.header_timeout_seconds
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens by itself, as uvicorn gives a handshake a minute."""
        await super().startup([])
        if self.should_exit:
            return
        for bound in sockets or ():
            self.servers.append(
                await asyncio.get_running_loop().create_server(
                    self._new_connection,
                    sock=bound,
                    backlog=BACKLOG,
                    ssl=self._tls,
                    ssl_handshake_timeout=None if self._tls is None else self._handshake_seconds,
                    ssl_shutdown_timeout=None if self._tls is None else TLS_CLOSE_SECONDS,
                )
            )
        if self._on_ready is not None and sockets:
            self._on_ready(address_of(sockets[0], "http" if self._tls is None else "https"))

    def _new_connection(self) -> asyncio.Protocol:
        return connection.Connection(
            self.config,
            self.server_state,
            self.lifespan.state,
            self._loop,
            limits=self._service.config,
            on_refusal=self._service.metrics.observe_refusal,
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.engine_failed = not self._service.engine.status().healthy
        await super().shutdown(sockets)

    def _take_nothing_new(self) -> None:
        self._service.stopping = True

    @property
    def _num_in_work(self) -> int:
        return self._service.num_active

    def _cut_work_off(self) -> None:
        self._service.cut_answers_off()

    async def _reload(self) -> None:
        with contextlib.suppress(UllageError):  # the log has said it
            await self._service.reloads.reload()
