"""The demo's HTTP side, against a small server that answers as ours does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from ullage.base.errors import UllageError
from ullage.cli.demo import Timing, ask, curl_line, show_memory
from ullage.cli.memory_tables import ledger_table

LEDGER = {
    "weights": {"planned_bytes": 1000, "allocated_bytes": 1000},
    "headroom": {"planned_bytes": 5, "allocated_bytes": 0},
}


def chunk(text: str | None, finish_reason: str | None = None, **others: object) -> dict[str, object]:
    delta = {} if text is None else {"content": text}
    return {"choices": [{"delta": delta, "finish_reason": finish_reason}], **others}


ANSWER = [
    chunk(""),
    chunk("A cache"),
    chunk(" of keys."),
    chunk(None, "stop"),
    {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 4}},
]


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(self.server.status)
            self.end_headers()
            for event in self.server.events:
                self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            self.wfile.write(self.server.end)

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"accounts": LEDGER, "measured": {"resident_bytes": 4000}}).encode())

        def log_message(self, *args: object) -> None:
            """Keeps quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.status, server.events, server.end = 200, ANSWER, b"data: [DONE]\n\n"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_answer_is_printed_as_it_comes_and_timed(server, capsys):
    timing = ask(server.server_port, "What is a KV cache?")
    assert capsys.readouterr().out == "A cache of keys."
    assert (timing.num_prompt_tokens, timing.num_output_tokens) == (7, 4)
    assert timing.first_token_seconds > 0
    assert timing.decode_seconds >= 0


def test_speed_counts_the_tokens_after_the_first():
    assert Timing(0.5, 2.0, num_prompt_tokens=9, num_output_tokens=41).decode_tokens_per_second == 20
    assert Timing(0.5, 0.0, num_prompt_tokens=9, num_output_tokens=1).decode_tokens_per_second == 0


def test_an_error_answer_is_told(server):
    server.status, server.events, server.end = 429, [], b"busy"
    with pytest.raises(UllageError, match="answered 429: busy"):
        ask(server.server_port, "?")


def test_a_stream_that_breaks_off_or_fails_is_not_taken_for_an_answer(server):
    server.end = b""
    with pytest.raises(UllageError, match="without"):
        ask(server.server_port, "?")
    server.events = [chunk("A"), {"error": {"message": "the engine failed"}}]
    with pytest.raises(UllageError, match="the engine failed"):
        ask(server.server_port, "?")


def test_the_memory_table_sets_the_plan_beside_what_was_allocated_and_what_is_resident(server, capsys):
    show_memory(server.server_port)
    shown = capsys.readouterr().out
    assert "1,000" in shown
    assert "headroom" not in shown
    assert "resident now" in shown
    assert "allocated as planned, to the byte" in shown


def test_one_sentence_says_what_the_memory_table_means():
    accounts = {
        "weights": {"planned_bytes": 800, "allocated_bytes": 800},
        "runtime": {"planned_bytes": 200, "allocated_bytes": 190},
    }
    said = str(ledger_table(accounts, 1012).caption)
    assert said == "allocated as planned, to the byte (runtime is measured); resident is 1.2 % above the plan"
    accounts["weights"]["allocated_bytes"] = 799
    said = str(ledger_table(accounts, 900).caption)
    assert said == "not allocated as planned: weights (runtime is measured); resident is 10.0 % below the plan"


def test_the_curl_line_can_be_pasted():
    line = curl_line(8123)
    assert line.startswith("curl -N http://127.0.0.1:8123/v1/chat/completions")
    body = line[line.index("-d '") + 4 : -1]
    assert json.loads(body)["stream"] is True
    assert "'" not in body
