"""A streamed answer: headers at once, events as they come, an error as an event, and an end when the client leaves."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ullage.base.errors import UllageError
from ullage.protocol import sse
from ullage.protocol.disconnect import run_unless_client_leaves
from ullage.protocol.errors import error_reply
from ullage.service.request_record import note_error

logger = logging.getLogger(__name__)


class EventStream(Response):
    """Sends ``events``; calls ``close`` at the end, however it comes."""

    media_type = sse.MEDIA_TYPE

    def __init__(
        self, events: AsyncGenerator[bytes], close: Callable[[], Awaitable[None]], headers: Mapping[str, str]
    ) -> None:
        super().__init__(headers={**sse.HEADERS, **headers})
        del self.headers["content-length"]  # of the empty body that the base class assumes
        self._events = events
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        try:
            await run_unless_client_leaves(receive, self._send_all(send))
        finally:
            await self._close()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._events_or_error()) as events:
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events_or_error(self) -> AsyncGenerator[bytes]:
        """After the first byte an error can only be an event. Nothing follows it: no made-up end, no ``[DONE]``."""
        try:
            async with aclosing(self._events) as events:
                async for event in events:
                    yield event
        except UllageError as error:
            logger.warning("stream ended by an error: %s", error)
            note_error(reply := error_reply(error))
            yield sse.encode_event(reply.body)
        except Exception as error:  # part of the HTTP door: the client must learn that the answer is cut
            logger.exception("stream ended by an unexpected error")
            note_error(reply := error_reply(error))
            yield sse.encode_event(reply.body)
