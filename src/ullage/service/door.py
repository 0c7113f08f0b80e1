"""The layer within ``Observer``, in plain ASGI: who may come in, a bound on work, no exception past this point.

Plain, because Starlette's ``BaseHTTPMiddleware`` puts a queue before the answer and hides from a stream that its client
has left.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ullage.access.tenant import SCOPE_NAME, tenant_of
from ullage.base.errors import EngineError, RequestError
from ullage.protocol.disconnect import ClientLeftError
from ullage.protocol.errors import error_reply
from ullage.service.reply import send_reply
from ullage.service.request_record import GENERATION_PATHS, note_key
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
        started = False

        async def noting_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            if self._service.auditor is not None and scope["method"] == "POST":
                self._service.auditor.check()
            if self._service.gate is not None:
                scope[SCOPE_NAME] = await self._service.gate.enter(scope["path"], scope["headers"], note_key)
            # Around the whole answer, streams included. GET makes no work, and health must be told at any time.
            with self._service.admission() if scope["method"] == "POST" else nullcontext():
                await self._check_allowance(scope)
                await self._app(scope, receive, noting_send)
        except ClientLeftError:
            logger.debug("the client left")
        except (RequestError, EngineError) as error:  # not let in or not admitted: the app answers its own errors
            if started:
                raise
            await send_reply(noting_send, error_reply(error))
        except Exception as error:  # the HTTP door: whatever goes wrong, the client gets an answer and we get a trace
            logger.exception("a request failed")
            if started:
                raise  # half an answer is out: the server cuts the connection
            await send_reply(noting_send, error_reply(error))

    async def _check_allowance(self, scope: Scope) -> None:
        """Before the body is read: a tenant that has used everything up costs no work."""
        if self._service.allowances is not None and scope["path"] in GENERATION_PATHS:
            await self._service.allowances.check(tenant_of(scope))
