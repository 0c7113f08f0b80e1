"""The outermost layer, in plain ASGI: a bound on work, a request id on every answer, no exception past this point.

Plain, because Starlette's ``BaseHTTPMiddleware`` puts a queue before the answer and hides from a stream that its client
has left.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ullage.access.tenant import SCOPE_NAME
from ullage.base.errors import EngineError, RequestError
from ullage.protocol.errors import ErrorReply, error_reply
from ullage.protocol.json_text import encode_json
from ullage.service.disconnect import ClientLeftError
from ullage.service.request_id import REQUEST_ID_HEADER, request_id_of
from ullage.service.request_id import SCOPE_NAME as REQUEST_ID_SCOPE_NAME
from ullage.service.service import Service

logger = logging.getLogger(__name__)


class Door:
    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = scope[REQUEST_ID_SCOPE_NAME] = request_id_of(scope["headers"])
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        try:
            if self._service.gate is not None:
                scope[SCOPE_NAME] = await self._service.gate.enter(scope["path"], scope["headers"])
            # Around the whole answer, streams included. GET makes no work, and health must be told at any time.
            with self._service.admission() if scope["method"] == "POST" else nullcontext():
                await self._app(scope, receive, send_with_id)
        except ClientLeftError:
            logger.debug("request %s: the client left", request_id)
        except (RequestError, EngineError) as error:  # not let in or not admitted: the app answers its own errors
            if started:
                raise
            await _send_reply(send_with_id, error_reply(error))
        except Exception as error:  # the HTTP door: whatever goes wrong, the client gets an answer and we get a trace
            logger.exception("request %s failed", request_id)
            if started:
                raise  # half an answer is out: the server cuts the connection
            await _send_reply(send_with_id, error_reply(error))


async def _send_reply(send: Send, reply: ErrorReply) -> None:
    headers = [(b"content-type", b"application/json")]
    headers += [(name.encode(), value.encode()) for name, value in reply.headers.items()]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": encode_json(reply.body)})
