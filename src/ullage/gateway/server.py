"""Runs the gateway on a port until a signal says stop, and stops in good order."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable
from functools import partial
from typing import cast

from ullage.base.errors import ConfigError
from ullage.gateway.app import create_app
from ullage.gateway.config import GatewayConfig
from ullage.gateway.gateway import Gateway
from ullage.protocol import connection
from ullage.protocol.orderly_server import BACKLOG, OrderlyServer, address_of

FILES_BESIDE_CONNECTIONS = 64


def bind(config: GatewayConfig) -> socket.socket:
    """:raises ConfigError: the address is in use, not ours, or not an address"""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        where = f"{config.host}:{config.port}"
        raise ConfigError(f"can't listen on {where}: {error}", hint="see --host and --port") from error


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


class Server(OrderlyServer):
    """Of one gateway."""

    def __init__(self, gateway: Gateway, on_ready: Callable[[str], None]) -> None:
        config = gateway.config
        connections = partial(connection.Connection, limits=config, on_refusal=gateway.note_refusal)
        http = cast(type[asyncio.Protocol], connections)
        super().__init__(create_app(gateway), http, config.keep_alive_seconds, config.drain_seconds)
        self._gateway = gateway
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if sockets:
            self._on_ready(address_of(sockets[0]))

    def _take_nothing_new(self) -> None:
        self._gateway.in_work.stopping = True

    @property
    def _num_in_work(self) -> int:
        return self._gateway.in_work.num_requests

    def _cut_work_off(self) -> None:
        self._gateway.in_work.cut_off()

    async def _reload(self) -> None:
        await self._gateway.reload()
