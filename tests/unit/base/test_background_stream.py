"""A reader that doesn't read holds nobody up."""

from __future__ import annotations

import io
import logging
import threading

import pytest

from ullage.base.background_stream import BackgroundStream


class SlowStream(io.StringIO):
    """Writes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.is_writing, self.let_go = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.is_writing.set()
        self.let_go.wait()
        return super().write(text)


def test_what_is_written_arrives_in_order() -> None:
    target = io.StringIO()
    stream = BackgroundStream(target)
    for i in range(100):
        stream.write(f"{i}\n")
    stream.close()
    assert target.getvalue() == "".join(f"{i}\n" for i in range(100))


def test_nobody_waits_for_a_reader_that_does_not_read_and_the_loss_is_told(caplog: pytest.LogCaptureFixture) -> None:
    target = SlowStream()
    stream = BackgroundStream(target, max_waiting=2)
    stream.write("a")
    assert target.is_writing.wait(10)
    for text in "bcdef":
        stream.write(text)
    target.let_go.set()
    stream.close()
    assert target.getvalue() == "abc"
    assert [record.getMessage() for record in caplog.records] == ["3 lines of the log were lost: nobody read them"]
    assert caplog.records[0].levelno == logging.WARNING


def test_a_stream_that_was_closed_ends_nothing() -> None:
    target = io.StringIO()
    stream = BackgroundStream(target)
    target.close()
    stream.write("a")
    stream.close()
    stream.write("nobody is there")
