"""Server-sent events as the OpenAI API uses them. Source: WHATWG HTML, "Server-sent events"."""

from __future__ import annotations

from collections.abc import Mapping

from ullage.protocol.json_text import encode_json

MEDIA_TYPE = "text/event-stream"

HEADERS = {
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # nginx would collect events into lumps otherwise
}

DONE = b"data: [DONE]\n\n"

PING = b": ping\n\n"
"""A comment: clients skip it, proxies and time-outs see that the stream lives."""


def encode_event(payload: Mapping[str, object]) -> bytes:
    """One event. JSON text has no raw line break, so one ``data:`` line is enough."""
    return b"data: " + encode_json(payload) + b"\n\n"
