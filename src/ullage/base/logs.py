"""Logs: one line for a record, as text or as JSON, with the id of the request that was served meanwhile.

Nothing that a client sent can begin a new line or move a cursor: what isn't printable is escaped.
"""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from ullage.base.background_stream import BackgroundStream

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""Of the HTTP request that the present task serves; empty where there is none."""
FIELDS = "fields"
"""``extra={FIELDS: {...}}``: further members of a JSON line."""


def set_up_logging(level: LogLevel, form: LogFormat, stream: TextIO | BackgroundStream | None = None) -> None:
    """Sends all logs of this process to one stream.

    :param stream: None: standard error
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    set_log_level(level)


def set_log_level(level: LogLevel) -> None:
    """Of what Ullage says. Libraries only warn, but for ``debug``."""
    logging.getLogger("ullage").setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel(logging.INFO if level == "debug" else logging.WARNING)


def escaped(text: str) -> str:
    """On one line, without anything that a terminal obeys."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


class TextFormatter(logging.Formatter):
    """``time LEVEL logger: message [request id]``; a traceback follows, each of its lines behind a bar."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname} {record.name}: {escaped(record.getMessage())}"
        if request_id := REQUEST_ID.get():
            line += f" [{escaped(request_id)}]"
        lines = [line, *(f"  | {escaped(part)}" for part in _traceback(self, record).splitlines())]
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """A JSON object in a line: ``time``, ``level``, ``logger``, ``message``, and what else there is to say."""

    def format(self, record: logging.LogRecord) -> str:
        members: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := REQUEST_ID.get():
            members["request_id"] = request_id
        members |= getattr(record, FIELDS, {})
        if traceback := _traceback(self, record):
            members["traceback"] = traceback
        return json.dumps(members, default=str)  # in ASCII: every line end, and half a character too, is escaped


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if record.exc_info and record.exc_info[0] is not None:
        return formatter.formatException(record.exc_info)
    return record.exc_text or ""
