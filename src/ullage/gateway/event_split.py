"""Cuts a stream of bytes into server-sent events, unchanged. Source: WHATWG HTML, "Server-sent events"."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

END_OF_EVENT = re.compile(rb"\r\n\r\n|\n\r\n|\n\n|\r\r")
LONGEST_END_BYTES = 4
DATA = re.compile(rb"^data:[ ]?(.*?)\r?$", re.MULTILINE)


class EventSplitter:
    """Bytes in, whole events out; ``rest`` is what has come of the next one."""

    def __init__(self) -> None:
        self.rest = bytearray()

    def split(self, data: bytes) -> Iterator[bytes]:
        """Each event with the empty line that ends it."""
        searched = max(0, len(self.rest) - LONGEST_END_BYTES + 1)
        self.rest += data
        while end := END_OF_EVENT.search(self.rest, searched):
            event = bytes(self.rest[: end.end()])
            del self.rest[: end.end()]
            searched = 0
            yield event


def is_done(event: bytes) -> bool:
    return event.startswith(b"data:") and event[5:].strip() == b"[DONE]"


def error_of(event: bytes) -> dict[str, object] | None:
    """The ``error`` object, if this event tells of one."""
    if b'"error"' not in event:
        return None
    try:
        payload = json.loads(b"\n".join(DATA.findall(event)))
    except ValueError:
        return None
    error = payload.get("error") if isinstance(payload, dict) else None
    return error if isinstance(error, dict) else None
