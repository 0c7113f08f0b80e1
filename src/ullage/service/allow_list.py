"""The layer that knows where requests come from: whoever isn't on the list is refused before anything else is done."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from ullage.access.gate import OPEN_PATH
from ullage.base.errors import PermissionDeniedError
from ullage.protocol.errors import error_reply
from ullage.service.reply import send_reply
from ullage.service.service import Service


class AllowList:
    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Liveness stays open: a supervisor's probes come from addresses that nobody chose, and tell no more than a
        connection does."""
        if scope["type"] == "http" and scope["path"] != OPEN_PATH:
            try:
                self._service.clients.check(self._service.clients.of(scope))
            except PermissionDeniedError as error:
                await send_reply(send, error_reply(error))
                return
        await self._app(scope, receive, send)
