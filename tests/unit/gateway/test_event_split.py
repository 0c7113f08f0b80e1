from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.gateway.event_split import EventSplitter, error_of, is_done

EVENTS = [b"data: 1\n\n", b": ping\r\n\r\n", b"event: x\r\ndata: 2\r\n\r\n", b"data: 3\n\r\n", b"data: 4\r\r"]


@given(st.lists(st.sampled_from(EVENTS), max_size=6), st.lists(st.integers(0, 80), max_size=8))
def test_events_come_whole_however_the_bytes_are_cut(events, cuts):
    data = b"".join(events) + b"data: hal"
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    splitter = EventSplitter()
    got = [event for start, end in pairwise(bounds) for event in splitter.split(data[start:end])]
    assert b"".join(got) + splitter.rest == data
    assert got == events
    assert splitter.rest == b"data: hal"


@pytest.mark.parametrize("event", [b"data: [DONE]\n\n", b"data:[DONE]\r\n\r\n"])
def test_done_is_recognised(event):
    assert is_done(event)


@pytest.mark.parametrize("event", [b'data: {"x": "[DONE]"}\n\n', b": [DONE]\n\n", b"\n\n"])
def test_other_events_are_not_done(event):
    assert not is_done(event)


@pytest.mark.parametrize(
    "event",
    [b'data: {"error": {"code": "x"}}\n\n', b'event: error\ndata:{"error":\ndata: {"code": "x"}}\r\n\r\n'],
)
def test_an_error_is_found_in_an_event(event):
    assert error_of(event) == {"code": "x"}


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"error": null}\n\n',
        b'data: {"choices": [{"delta": {"content": "\\"error\\""}}]}\n\n',
        b'data: ["error"]\n\n',
        b'data: "error\n\n',
        b': {"error": {}}\n\n',
    ],
)
def test_events_that_only_mention_errors_are_none(event):
    assert error_of(event) is None
