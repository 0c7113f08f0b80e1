"""The way to one client, as uvicorn writes to it: counts what goes out, and ends so that the last of it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

LINGER_SECONDS = 2.0


class ClientTransport:
    """A transport with two differences; everything else is the transport's own.

    It knows how much the client has taken. And it closes in two steps where the client still sends: the answer would be
    lost otherwise, as a system that gets bytes for a closed socket tells the sender to forget the connection.

    :param client_may_still_send: asked when it is closed
    """

    def __init__(self, transport: asyncio.Transport, client_may_still_send: Callable[[], bool]) -> None:
        self._transport = transport
        self._client_may_still_send = client_may_still_send
        self._num_written_bytes = 0
        self.lingers = False
        """The answer is out, and what still comes in is thrown away."""

    @property
    def num_taken_bytes(self) -> int:
        return self._num_written_bytes - self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        self._num_written_bytes += len(data)
        self._transport.write(data)

    def is_closing(self) -> bool:
        return self.lingers or self._transport.is_closing()

    def close(self) -> None:
        """The second call closes at once."""
        if self.is_closing() or not self._transport.can_write_eof() or not self._client_may_still_send():
            self._transport.close()
            return
        self.lingers = True
        self._transport.write_eof()
        self._transport.resume_reading()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
