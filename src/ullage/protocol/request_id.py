"""The id of a request, on its answer and in the log; for people, never a key of ours: clients choose it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

REQUEST_ID_HEADER = "x-request-id"
SCOPE_NAME = "request_id"
"""Where an ASGI scope holds it, once it is chosen."""
MAX_REQUEST_ID_BYTES = 128


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The client's own, if it is short printable ASCII; a fresh one otherwise.

    :param headers: lower-case names, as ASGI gives them
    """
    given = dict(headers).get(REQUEST_ID_HEADER.encode(), b"")
    if 0 < len(given) <= MAX_REQUEST_ID_BYTES and all(0x20 <= byte <= 0x7E for byte in given):
        return given.decode("ascii")
    return f"req-{uuid.uuid4().hex}"
