"""Lines of the log: whole, parsable, and never more than was meant."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest

from ullage.base.logs import FIELDS, REQUEST_ID, LogFormat, escaped, set_log_level, set_up_logging

EVIL = "a\n2026-01-01 ERROR ullage: forged\r\x1b[2J\u2028\u202e\ud800é"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("", "ullage", "uvicorn")]
    before = [(logger.level, logger.handlers[:]) for logger in loggers]
    yield
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers


def lines_of(form: LogFormat, *messages: str, exception: bool = False, **extra: object) -> list[str]:
    stream = io.StringIO()
    set_up_logging("info", form, stream)
    for message in messages:
        logging.getLogger("ullage.test").info("%s", message, exc_info=exception, extra=extra)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("form", ["text", "json"])
def test_nothing_that_a_client_sends_makes_a_line_of_its_own(form: LogFormat) -> None:
    lines = lines_of(form, EVIL)
    assert len(lines) == 1
    assert all(c == "é" or c.isprintable() for c in lines[0])
    assert lines[0].isascii() or form == "text"


def test_a_json_line_says_all_there_is() -> None:
    token = REQUEST_ID.set("req-1")
    (line,) = lines_of("json", EVIL, **{FIELDS: {"status": 200}})
    REQUEST_ID.reset(token)
    told = json.loads(line)
    assert told.pop("time").endswith("Z")
    assert told == {
        "level": "info",
        "logger": "ullage.test",
        "message": EVIL,
        "request_id": "req-1",
        "status": 200,
    }


def test_a_text_line_ends_with_the_request_id() -> None:
    token = REQUEST_ID.set("req-1")
    (line,) = lines_of("text", "hello")
    REQUEST_ID.reset(token)
    assert line.endswith(" INFO ullage.test: hello [req-1]")


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_cannot_forge_a_line_either(form: LogFormat) -> None:
    try:
        raise ValueError(EVIL)
    except ValueError:
        first, *others = lines_of(form, "it failed", exception=True)
    assert "it failed" in first
    assert all(line.startswith("  | ") for line in others)
    assert len(others) > 1 if form == "text" else "ValueError" in json.loads(first)["traceback"]


def test_the_level_is_of_ullage_libraries_only_warn(monkeypatch) -> None:
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "disabled", False)  # a forced stop silences it
    stream = io.StringIO()
    set_up_logging("info", "text", stream)
    names = ("ullage.a", "uvicorn.error", "another")
    for name in names:
        logging.getLogger(name).info("said by %s", name)
        logging.getLogger(name).warning("warned by %s", name)
    assert [line.rpartition(": ")[2] for line in stream.getvalue().splitlines()] == [
        "said by ullage.a",
        *(f"warned by {name}" for name in names),
    ]
    set_log_level("error")
    logging.getLogger("ullage.a").warning("no more")
    assert "no more" not in stream.getvalue()


def test_setting_up_twice_says_everything_once() -> None:
    lines_of("text", "a")
    assert len(lines_of("json", "b")) == 1


def test_the_usual_stream_is_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("info", "text")
    logging.getLogger("ullage").info("here")
    assert "here" in capsys.readouterr().err
    assert sys.stderr is not None


def test_plain_text_stays_as_it_is() -> None:
    assert escaped("/v1/Größe 你好") == "/v1/Größe 你好"
