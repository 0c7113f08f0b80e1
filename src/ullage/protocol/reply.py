"""An error's whole answer, in plain ASGI."""

from __future__ import annotations

from starlette.types import Send

from ullage.protocol.errors import ErrorReply
from ullage.protocol.json_text import encode_json


async def send_reply(send: Send, reply: ErrorReply) -> None:
    headers = [(b"content-type", b"application/json")]
    headers += [(name.encode(), value.encode()) for name, value in reply.headers.items()]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": encode_json(reply.body)})
