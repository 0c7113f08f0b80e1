"""HTTP, and PAR-01 and PAR-03: what is malformed is refused by name, in short, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.near_ties import COMPARED, assert_same_answer
from tests.openai_api import CHAT, COMPLETIONS, Api, error_of, text_of
from tests.ullage_server import UllageServer

JSON = {"content-type": "application/json"}
ASKED: dict[str, Any] = {"model": "smollm2", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def with_text(field: str, text: str) -> bytes:
    """A valid body with one field whose value is written as it stands: it need not be JSON."""
    return json.dumps({**ASKED, field: "HERE"}).replace('"HERE"', text).encode()


async def send(api: Api, body: bytes) -> Any:
    return await api.client.post(CHAT, content=body, headers=JSON)


MALFORMED = {
    "empty": b"",
    "half": b"{:",
    "truncated": json.dumps(ASKED).encode()[:-5],
    "a list": b"[]",
    "a text": b'"hello"',
    "100,000 brackets": b"[" * 100_000,
    "not UTF-8": b"\xff\xfe",
    "half a surrogate pair": with_text("user", '"\\ud800"'),
    "half a surrogate pair in a message": json.dumps({**ASKED, "messages": [{"role": "user", "content": "X"}]})
    .replace('"X"', '"\\ud800"')
    .encode(),
    "a byte-order mark": b"\xef\xbb\xbf" + json.dumps(ASKED).encode(),
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_body_is_the_callers_mistake(api, name):
    answer = await send(api, MALFORMED[name])
    assert answer.status_code == 400
    assert error_of(answer)["type"] == "invalid_request_error"


async def test_what_is_not_there_is_told_as_such(api):
    error = error_of(answer := await api.client.post(CHAT, json={**ASKED, "model": "nope"}))
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    without = {name: value for name, value in ASKED.items() if name != "model"}
    error = error_of(answer := await api.client.post(CHAT, json=without))
    assert (answer.status_code, error["param"]) == (400, "model")
    answer = await api.client.get(CHAT)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert error_of(answer)["code"] == "method_not_allowed"
    answer = await api.client.post("/v1/nothing", json=ASKED)
    assert (answer.status_code, error_of(answer)["code"]) == (404, "unknown_url")


OUT_OF_RANGE = [
    *(("temperature", text) for text in ("NaN", "Infinity", "-Infinity", "1e400", "-0.1", "2.1", '"nan"')),
    *(("top_p", text) for text in ("NaN", "-1", "1.5")),
    *(("presence_penalty", text) for text in ("1e308", "-3")),
    *(("repetition_penalty", text) for text in ("0", "-1", "NaN")),
    ("min_p", "2"),
]
STORY = {"prompt": "The harbour master wrote", "temperature": 0, "ignore_eos": True, **COMPARED}


async def test_numbers_out_of_range_are_refused_and_a_stream_beside_them_does_not_notice(api):
    alone = await api.complete(**STORY, max_tokens=400)
    beside = asyncio.create_task(api.stream(COMPLETIONS, **STORY, max_tokens=400))
    await api.until(lambda ledger: ledger["requests"]["running"] > 0)
    for field, text in OUT_OF_RANGE:
        answer = await send(api, with_text(field, text))
        error = error_of(answer)
        assert answer.status_code == 400, (field, text)
        assert error["param"] == (None if "N" in text or "I" in text else field), (field, text)
        assert (await send(api, json.dumps(ASKED).encode())).status_code == 200
    assert_same_answer(await beside, alone)


async def test_a_very_low_temperature_is_nearly_none(api):
    cold, greedy = [await api.complete(**{**STORY, "temperature": t}, max_tokens=12, seed=3) for t in (1e-5, 0)]
    assert text_of(cold) == text_of(greedy)


WRONG: list[tuple[str, object]] = [
    ("stream", "false"),
    ("max_tokens", "10"),
    ("max_tokens", 1.5),
    ("max_tokens", 99999999999999999999),
    ("n", 0),
    ("n", -1),
    ("n", 129),
    ("n", 1_000_000_000),
    ("messages", "hi"),
    ("messages", [1]),
    ("messages", [{"role": 5}]),
    ("stop", 5),
    ("stop", [1]),
    ("top_logprobs", True),
    ("logit_bias", []),
    ("seed", "x"),
    ("model", 7),
    ("stream_options", 3),
    ("response_format", "json"),
]


async def test_wrong_types_are_refused_by_name_and_nothing_is_put_in_their_place(server, api):
    before = (await api.until_idle())["measured"]["resident_bytes"]
    for field, value in WRONG:
        answer = await api.client.post(CHAT, json={**ASKED, field: value})
        assert answer.status_code == 400, (field, value)
        assert (error_of(answer)["param"] or "").split("[")[0].split(".")[0] == field, (field, value)
    assert (await api.ledger())["measured"]["resident_bytes"] < before + (32 << 20)
    assert server.process.poll() is None
    unknown = await api.client.post(CHAT, json={**ASKED, "fooo": 1})
    assert unknown.status_code == 200
    assert unknown.headers["x-ullage-ignored-fields"] == "fooo"


# -- HTTP-03 -----------------------------------------------------------------------------------------------------------


async def first_answer(server: UllageServer, head: list[str], pieces: Any) -> tuple[int, bytes, int]:
    """Status and bytes of what comes back, and how many bytes went out before: sending stops when something comes."""
    address = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    answer = asyncio.create_task(reader.read(1 << 17))
    sent = 0
    try:
        writer.write("\r\n".join([f"POST {CHAT} HTTP/1.1", "host: x", *head]).encode())
        for piece in pieces:
            if answer.done():
                break
            writer.write(piece)
            sent += len(piece)
            await writer.drain()
            await asyncio.sleep(0)
    except ConnectionError:
        pass
    try:
        async with asyncio.timeout(30):
            data = await answer
    except ConnectionResetError:
        data = b""
    finally:
        writer.transport.abort()
    return int(data.split()[1]) if data else 0, data, sent


def endless(piece: bytes, total: int) -> Any:
    return (piece for _ in range(total // len(piece)))


async def test_thousands_of_wrong_items_make_a_short_answer(api):
    answer = await api.client.post(CHAT, json={**ASKED, "messages": [{"role": "KESTREL"}] * 12_000})
    assert answer.status_code == 400
    assert error_of(answer)["param"].startswith("messages")
    assert len(answer.content) < 65536
    assert "KESTREL" not in answer.text


MIB = 1 << 20


async def test_huge_headers_and_bodies_are_refused_before_they_are_there(server, api):
    before = (await api.until_idle())["measured"]["resident_bytes"]
    normal = asyncio.create_task(api.chat("hi", max_tokens=20))
    status, _, sent = await first_answer(server, ["x-big: "], endless(b"x" * 65536, 10 * MIB))
    assert status in (0, 400, 431)
    assert sent < 10 * MIB
    many = "\r\n".join(f"x-{i}: {i}" for i in range(5000)).encode()
    status, *_ = await first_answer(server, [""], [many, b"\r\n\r\n"])
    assert status in (400, 431)
    head = ["content-type: application/json", f"content-length: {200 * MIB}", "", ""]
    status, _, sent = await first_answer(server, head, endless(b" " * 65536, 200 * MIB))
    assert status == 413
    assert sent < 16 * MIB
    head = ["content-type: application/json", "transfer-encoding: chunked", "", ""]
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    status, _, sent = await first_answer(server, head, endless(chunk, 200 * MIB))
    assert status == 413
    assert sent < 32 * MIB
    answer = await api.post(CHAT, messages=[{"role": "user", "content": "one two " * (20 * MIB // 8)}])
    assert answer.status_code == 413
    assert (await normal)["choices"]
    assert (await api.ledger())["measured"]["resident_bytes"] < before + (64 << 20)


async def test_a_text_within_the_body_but_far_beyond_the_context_is_refused_by_its_length(api):
    answer = await api.post(CHAT, messages=[{"role": "user", "content": "one two " * (7 * MIB // 8)}])
    assert answer.status_code == 400
    assert error_of(answer)["code"] == "context_length_exceeded"
