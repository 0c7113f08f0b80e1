"""The outermost layer, in plain ASGI: the request's id, its line in the log, and no exception past this point."""

from __future__ import annotations

import logging
import time
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, field
from http import HTTPMethod, HTTPStatus

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ullage.base.errors import UllageError
from ullage.base.logs import FIELDS, REQUEST_ID
from ullage.gateway.replica import Turn
from ullage.protocol.disconnect import ClientLeftError
from ullage.protocol.errors import error_reply
from ullage.protocol.known_path import known_path
from ullage.protocol.reply import send_reply
from ullage.protocol.request_id import REQUEST_ID_HEADER, SCOPE_NAME, request_id_of

CLIENT_LEFT = 499
OTHER_METHOD = "OTHER"
KNOWN_STATUSES = frozenset({*map(int, HTTPStatus), CLIENT_LEFT})

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Record:
    """What is told of a request when it is complete."""

    status: int = CLIENT_LEFT
    turns: list[Turn] = field(default_factory=list)


CURRENT: ContextVar[Record] = ContextVar("record")


def note_turn(turn: Turn) -> None:
    """The request of the present task is offered to a replica."""
    CURRENT.get().turns.append(turn)


class Door:
    """:ivar num_answers: by status; 0 stands for those that HTTP doesn't know"""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.num_answers: Counter[int] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = scope[SCOPE_NAME] = request_id_of(scope["headers"])
        record = Record()
        began_at = time.monotonic()
        bound = CURRENT.set(record), REQUEST_ID.set(request_id)

        async def noting_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        try:
            await self._answer(scope, receive, noting_send, record)
        finally:
            self.num_answers[record.status if record.status in KNOWN_STATUSES else 0] += 1
            _write_access_line(scope, record, time.monotonic() - began_at)
            CURRENT.reset(bound[0])
            REQUEST_ID.reset(bound[1])

    async def _answer(self, scope: Scope, receive: Receive, send: Send, record: Record) -> None:
        try:
            await self._app(scope, receive, send)
        except ClientLeftError:
            logger.debug("the client left")
        except UllageError as error:
            if record.status != CLIENT_LEFT:  # half an answer is out: the server cuts the connection
                logger.warning("answer broke off: %s", error)
                return
            await send_reply(send, error_reply(error))
        except Exception as error:  # the HTTP door: whatever goes wrong, the client gets an answer and we get a trace
            logger.exception("a request failed")
            if record.status != CLIENT_LEFT:
                raise
            await send_reply(send, error_reply(error))


def _write_access_line(scope: Scope, record: Record, seconds: float) -> None:
    """No prompt, no key, and neither address nor method but those that are known."""
    if not logger.isEnabledFor(logging.INFO):
        return
    path = known_path(scope)
    method = scope["method"] if scope["method"] in HTTPMethod.__members__ else OTHER_METHOD
    fields = {
        "method": method,
        "path": path,
        "status": record.status,
        "seconds": round(seconds, 4),
        "replicas": [turn.replica.config.name for turn in record.turns],
        "outcomes": [turn.outcome for turn in record.turns],
    }
    turns = ", ".join(f"{turn.replica.config.name} {turn.outcome}" for turn in record.turns)
    line = f"{method} {path} {record.status} {seconds:.3f} s {turns}"
    logger.info("%s", line.rstrip(), extra={FIELDS: fields})
