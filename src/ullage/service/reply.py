"""An error's whole answer, noted in the record of its request."""

from __future__ import annotations

from starlette.types import Send

from ullage.protocol import reply as plain
from ullage.protocol.errors import ErrorReply
from ullage.service.request_record import note_error


async def send_reply(send: Send, reply: ErrorReply) -> None:
    note_error(reply)
    await plain.send_reply(send, reply)
