"""One client's connection: uvicorn's HTTP/1.1, with bounds on their number and on how long one may keep us waiting."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import Any, Protocol, cast

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol
from uvicorn.server import ServerState

from ullage.base.errors import HeaderTooLargeError, InvalidRequestError, QueueFullError, RequestError
from ullage.protocol.client_transport import ClientTransport
from ullage.protocol.errors import error_reply
from ullage.protocol.json_text import encode_json
from ullage.protocol.patience import Patience
from ullage.protocol.request_id import REQUEST_ID_HEADER, SCOPE_NAME, request_id_of

FULL_RETRY_SECONDS = 1.0
HEADER_PIECE_BYTES = 1 << 12
MAX_EARLY_BYTES = 1 << 16  # of requests sent before the answer to the one in work

logger = logging.getLogger(__name__)


class ConnectionLimits(Protocol):
    """Settings of those who serve connections."""

    @property
    def max_connections(self) -> int: ...
    @property
    def header_timeout_seconds(self) -> float: ...
    @property
    def send_timeout_seconds(self) -> float: ...
    @property
    def send_bytes_per_second(self) -> int: ...


class Connection(H11Protocol):
    """Adds two clocks to uvicorn's own, which runs between two requests.

    One runs while no request is in work and bytes have come, or never came: it ends when a whole header is there. The
    other runs while bytes wait to be sent, until the client has used its ``Patience`` up.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ConnectionLimits,
        on_refusal: Callable[[str], None],
    ) -> None:
        """:param on_refusal: told the code of each answer that is written here"""
        super().__init__(config, server_state, app_state, _loop)
        self.logger = logger
        self._limits = limits
        self._on_refusal = on_refusal
        self._header_clock: asyncio.TimerHandle | None = None
        self._send_clock: asyncio.TimerHandle | None = None
        self._patience = Patience(limits.send_timeout_seconds, limits.send_bytes_per_second)
        self._client: ClientTransport
        self._stopping = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._client = ClientTransport(transport, self._client_may_still_send)
        super().connection_made(cast(asyncio.Transport, self._client))
        is_tls = transport.get_extra_info("sslcontext") is not None  # asyncio pauses at the bound there, else beyond it
        transport.set_write_buffer_limits(high=1 if is_tls else 0)  # tell of every byte that waits, not only of many
        if len(self.connections) > self._limits.max_connections:
            message = f"{self._limits.max_connections} connections are open already"
            self._refuse(QueueFullError(message, retry_after_seconds=FULL_RETRY_SECONDS))
        else:
            self._wait_for_header()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting_for_header()
        self._stop_waiting_for_client()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        while data and not self.transport.is_closing():
            # A header in pieces: h11 bounds what of it has come before the end has, not one that comes at once.
            size = HEADER_PIECE_BYTES if self.conn.their_state is h11.IDLE else len(data)
            super().data_received(data[:size])
            data = data[size:]
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting_for_header()
            self._go_on_listening()
        elif self._header_clock is None:
            self._wait_for_header()

    def _go_on_listening(self) -> None:
        """uvicorn stops reading when bytes of a next request come early, and then doesn't see the client leave."""
        if self.conn.their_state is h11.DONE and len(self.conn.trailing_data[0]) <= MAX_EARLY_BYTES:
            self.flow.resume_reading()

    def shutdown(self) -> None:
        self._stopping = True
        super().shutdown()

    def _client_may_still_send(self) -> bool:
        """A request that hasn't been read to its end, or can't be. A stop waits for none."""
        return not self._stopping and self.conn.their_state in (h11.SEND_BODY, h11.ERROR)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_client()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_waiting_for_client()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._patience.renew()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's signature
        """To what isn't HTTP. Nothing where an answer has begun."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
        elif getattr(sys.exc_info()[1], "error_status_hint", None) == 431:
            self._refuse(HeaderTooLargeError("the request header is too large"))
        else:
            self._refuse(InvalidRequestError("this is not HTTP/1.1"))

    def _request_id(self) -> str:
        """Of the request in work, if there is one."""
        if self.cycle is None or self.cycle.response_complete:
            return request_id_of(())
        return str(self.scope.get(SCOPE_NAME) or request_id_of(self.headers))

    def _refuse(self, error: RequestError) -> None:
        """The whole answer, and the end of the connection."""
        reply = error_reply(error)
        self._on_refusal(reply.body["error"]["code"] or reply.body["error"]["type"])
        body = encode_json(reply.body)
        headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        headers |= {REQUEST_ID_HEADER: self._request_id(), **reply.headers}
        reason = STATUS_PHRASES[reply.status]
        response = h11.Response(status_code=reply.status, headers=list(headers.items()), reason=reason)
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None:  # to the app, the client has left
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def _wait_for_header(self) -> None:
        self._header_clock = self.loop.call_later(self._limits.header_timeout_seconds, self.transport.close)

    def _stop_waiting_for_header(self) -> None:
        if self._header_clock is not None:
            self._header_clock.cancel()
            self._header_clock = None

    def _wait_for_client(self) -> None:
        """Aborts when the patience ends: to close would wait for the client to read."""
        self._patience.wait(self.loop.time(), self._client.num_taken_bytes)
        if self._patience.left_seconds <= 0:
            self.transport.abort()
        else:
            self._send_clock = self.loop.call_later(self._patience.left_seconds, self._wait_for_client)

    def _stop_waiting_for_client(self) -> None:
        if self._send_clock is not None:
            self._send_clock.cancel()
            self._send_clock = None
            self._patience.go_on(self.loop.time(), self._client.num_taken_bytes)
