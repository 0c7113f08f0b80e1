"""One client's connection: uvicorn's HTTP/1.1, with bounds on their number and on how long one may keep us waiting."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from ullage.base.errors import QueueFullError
from ullage.gateway.config import GatewayConfig
from ullage.protocol.errors import error_reply
from ullage.protocol.json_text import encode_json
from ullage.protocol.request_id import REQUEST_ID_HEADER, request_id_of

FULL_RETRY_SECONDS = 1.0
MAX_EARLY_BYTES = 1 << 16  # of requests sent before the answer to the one in work


class Connection(H11Protocol):
    """Adds two clocks to uvicorn's own, which runs between two requests.

    One runs until a whole header is there. The other runs while bytes wait to be sent, and starts anew when all of them
    have gone out.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: GatewayConfig,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._header_clock: asyncio.TimerHandle | None = None
        self._send_clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # tell of every byte that waits, not only of many
        if len(self.connections) > self._limits.max_connections:
            self._refuse()
        else:
            self._wait_for_header()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting_for_header()
        self._stop_waiting_for_client()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting_for_header()
            self._go_on_listening()
        elif self._header_clock is None:
            self._wait_for_header()

    def _go_on_listening(self) -> None:
        """uvicorn stops reading when bytes of a next request come early, and then doesn't see the client leave."""
        if self.conn.their_state is h11.DONE and len(self.conn.trailing_data[0]) <= MAX_EARLY_BYTES:
            self.flow.resume_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        # To close would wait for the client to read.
        self._send_clock = self.loop.call_later(self._limits.send_timeout_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_waiting_for_client()

    def _refuse(self) -> None:
        """The whole answer, and the end of the connection."""
        message = f"{self._limits.max_connections} connections are open already"
        reply = error_reply(QueueFullError(message, retry_after_seconds=FULL_RETRY_SECONDS))
        body = encode_json(reply.body)
        headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        headers[REQUEST_ID_HEADER] = request_id_of(())
        lines = [f"{name}: {value}" for name, value in {**headers, **reply.headers}.items()]
        head = "\r\n".join([f"HTTP/1.1 {reply.status} Too Many Requests", *lines, "", ""])
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()

    def _wait_for_header(self) -> None:
        self._header_clock = self.loop.call_later(self._limits.header_timeout_seconds, self.transport.close)

    def _stop_waiting_for_header(self) -> None:
        if self._header_clock is not None:
            self._header_clock.cancel()
            self._header_clock = None

    def _stop_waiting_for_client(self) -> None:
        if self._send_clock is not None:
            self._send_clock.cancel()
            self._send_clock = None
