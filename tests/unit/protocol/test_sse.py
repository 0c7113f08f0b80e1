from __future__ import annotations

from ullage.protocol import sse


def test_an_event_is_one_data_line_whatever_the_text_holds():
    event = sse.encode_event({"text": "a\r\nb\n\ndata: [DONE]\u2028鱼"})
    assert event == 'data: {"text":"a\\r\\nb\\n\\ndata: [DONE]\u2028鱼"}\n\n'.encode()
    assert event.count(b"\n") == 2


def test_a_ping_is_a_comment():
    assert sse.PING.startswith(b":")
    assert sse.PING.endswith(b"\n\n")
