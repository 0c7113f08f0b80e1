"""Request bodies that are broken in every way we know, from a seed, and what must be true of each answer.

No body is ever a server's mistake: the status is below 500, the answer short, of the API's shape, and free of what was
sent; and the server goes on answering.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

PATHS = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/v1/embeddings")
CANARY = "c4n4ry"
"""In whatever is sent, as a value; never in an error. Keys may be there: an error names its field."""
LEAVING = ("length", "two lengths", "chunks", "both", "encoding")
"""Kinds where a server may rightly wait for more than there is: the client leaves, and needs no answer."""
MAX_REPLY_BYTES = 64 << 10
ANSWER_SECONDS = 60.0
HUGE_BODY_BYTES = 64 << 20

Random = random.Random


@dataclass(frozen=True, slots=True)
class Sent:
    """One request: where it goes, and all bytes after its request line."""

    kind: str
    path: str
    headers: bytes
    body: bytes

    def raw(self) -> bytes:
        head = f"POST {self.path} HTTP/1.1\r\nhost: fuzz\r\nconnection: close\r\n".encode()
        return head + self.headers + b"\r\n" + self.body


@dataclass(slots=True)
class Report:
    num_sent: Counter[str] = field(default_factory=Counter)
    num_answers: Counter[int] = field(default_factory=Counter)
    longest_seconds: float = 0.0
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.num_sent.items()))
        statuses = ", ".join(f"{status}: {count}" for status, count in sorted(self.num_answers.items()))
        lines = [f"{self.num_sent.total()} broken bodies ({kinds}); answers {statuses}"]
        lines.append(f"slowest answer {self.longest_seconds:.2f} s; {len(self.findings)} findings")
        return "\n".join([*lines, *self.findings[:20]])


# -- the grammar -------------------------------------------------------------------------------------------------------


def valid_fields(rng: Random, model: str, path: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"model": model, "user": CANARY}
    if path == "/detokenize":
        return {**fields, "tokens": [rng.randrange(1000) for _ in range(4)]}
    if path == "/v1/completions" or (path == "/tokenize" and rng.random() < 0.5):
        return {**fields, "prompt": f"say {CANARY}", "max_tokens": 2}
    return {**fields, "messages": [{"role": "user", "content": f"say {CANARY}"}], "max_tokens": 2}


WRONG_VALUES: tuple[Callable[[Random], Any], ...] = (
    lambda rng: None,
    lambda rng: rng.choice([True, False]),
    lambda rng: rng.choice([0, -1, 1.5, 2**31, 2**63, 2**64, -(2**63) - 1, 10**30, 10**4000, 1e308, -0.0, 5e-324]),
    lambda rng: rng.choice(["", CANARY, "10", "false", "\x00", "\x7f", "日本" * 50, "x" * 5000, "𝒳", "\u202e"]),
    lambda rng: [],
    lambda rng: {},
    lambda rng: [CANARY, 1, None, {"a": [CANARY]}],
    lambda rng: {"odd": {"odd": CANARY}},
    lambda rng: [[CANARY] * 50] * 50,
    lambda rng: [rng.randrange(-5, 60_000) for _ in range(5)],
    lambda rng: {"type": rng.choice(["json_schema", "regex", "grammar", CANARY]), "regex": "(" * 50},
    lambda rng: {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "#"}}},
)
FIELD_NAMES = (
    *("model", "messages", "prompt", "tokens", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k"),
    *("n", "best_of", "stop", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_p"),
    *("logit_bias", "logprobs", "top_logprobs", "echo", "stream", "stream_options", "min_tokens", "ignore_eos"),
    *("stop_token_ids", "cache_salt", "response_format", "structured_outputs", "regex", "grammar", "guided_json"),
    *("guided_choice", "tools", "tool_choice", "parallel_tool_calls", "suffix", "fooo", "", "__proto__", "a\nb"),
)


def wrong_types(rng: Random, fields: dict[str, Any]) -> bytes:
    """Any value in any field, also deep inside."""
    for _ in range(rng.randint(1, 3)):
        fields[rng.choice(FIELD_NAMES)] = rng.choice(WRONG_VALUES)(rng)
    if fields.get("max_tokens", 2) is None:
        fields["max_tokens"] = 2  # null is right, and asks for as much as there is room for
    if fields.get("messages") and isinstance(fields["messages"], list) and rng.random() < 0.5:
        message = {"role": rng.choice(["user", "tool", "assistant", CANARY, 5])}
        message[rng.choice(["content", "name", "tool_calls", "tool_call_id"])] = rng.choice(WRONG_VALUES)(rng)
        fields["messages"].append(message)
    return _json(fields)


def bad_numbers(rng: Random, fields: dict[str, Any]) -> bytes:
    number = rng.choice(["NaN", "Infinity", "-Infinity", "1e400", "-1e999", "9" * 5000, "01", "+1", ".5", "1.", "0x10"])
    return _json(fields)[:-1] + f',"{rng.choice(FIELD_NAMES[5:18])}":{number}}}'.encode()


def deep_nesting(rng: Random, fields: dict[str, Any]) -> bytes:
    depth = rng.choice([100, 199, 201, 1000, 100_000])
    opening, closing = rng.choice([(b"[", b"]"), (b'{"a":', b"}")])
    nested = opening * depth + b"1" + closing * rng.choice([depth, 0])
    where = rng.choice([b"fooo", b"messages", b"tools", b"guided_json", b"metadata", b"logit_bias"])
    return rng.choice([nested, _json(fields)[:-1] + b',"' + where + b'":' + nested + b"}"])


def surrogates(rng: Random, fields: dict[str, Any]) -> bytes:
    escape = rng.choice([r"\ud800", r"\udc00\ud800", r"\ud83d", r"\ud83d\u0041", r"\uDFFF", r"\u12", r"\x41", "\\"])
    return _json(fields).replace(CANARY.encode(), CANARY.encode() + escape.encode(), rng.randint(1, 2))


def bad_encodings(rng: Random, fields: dict[str, Any]) -> bytes:
    text = _json(fields)
    odd = rng.choice(
        [b"\xff", b"\xfe\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\x00", b"\n"]
    )
    return rng.choice(
        [
            b"\xef\xbb\xbf" + text,
            text.decode().encode("utf-16"),
            text.decode().encode("utf-32"),
            text.replace(CANARY.encode(), odd),
            odd + text,
            text.decode().encode("cp037"),
        ]
    )


def broken_text(rng: Random, fields: dict[str, Any]) -> bytes:
    """A few characters cut out, put in, or turned round."""
    text = bytearray(_json(fields))
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(text))
        match rng.randrange(4):
            case 0:
                del text[start:]
            case 1:
                del text[start : start + rng.randint(1, 5)]
            case 2:
                text[start:start] = rng.choice([b"{", b"]", b",", b'"', b":", b"//", b"/**/", b"'", b"\\", b"null"])
            case _:
                text[start] = rng.randrange(256)
        text = text or bytearray(b" ")
    return bytes(text)


def duplicate_keys(rng: Random, fields: dict[str, Any]) -> bytes:
    name = rng.choice(FIELD_NAMES)
    pairs = [f"{json.dumps(name)}:{json.dumps(rng.choice(WRONG_VALUES)(rng))}" for _ in range(rng.randint(2, 20))]
    return _json(fields)[:-1] + ("," + ",".join(pairs)).encode() + b',"max_tokens":2}'


def other_values(rng: Random, fields: dict[str, Any]) -> bytes:
    return rng.choice(
        [b"", b" ", b"[]", b'"text"', b"null", b"true", b"1", b"{}", b"{:", b"\xff\xfe", _json(fields) * 2]
    )


def many_values(rng: Random, fields: dict[str, Any]) -> bytes:
    """Kilobytes that are wrong thousands of times."""
    num = rng.choice([1000, 12_000, 100_000])
    item = rng.choice([{"role": CANARY}, 1, CANARY, [CANARY], {}])
    return _json(
        {**fields, rng.choice(["messages", "prompt", "tools", "stop", "tokens", "guided_choice"]): [item] * num}
    )


def _json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False).encode(errors="surrogatepass")


GRAMMAR: tuple[Callable[[Random, dict[str, Any]], bytes], ...] = (
    *(wrong_types, wrong_types, bad_numbers, deep_nesting, surrogates, bad_encodings, broken_text),
    *(duplicate_keys, other_values, many_values),
)


def http_nonsense(rng: Random, body: bytes) -> tuple[str, bytes, bytes]:
    """Kind, headers and bytes of a body that HTTP itself describes wrongly."""
    size = len(body)
    as_json = b"content-type: application/json\r\n"
    lengths = (b"-1", b"abc", b"1e3", b"9" * 30, b"", str(size - 1).encode(), b"0x10", b"5, 6", b"+5")
    chunks = (b"zz\r\n" + body, b"5\r\nab\r\n0\r\n\r\n", b"-1\r\n", b"f" * 40 + b"\r\n", b"5;" + b"a" * 100_000)
    length = f"content-length: {size}\r\n".encode()
    return rng.choice(
        [
            ("length", as_json + b"content-length: " + rng.choice(lengths) + b"\r\n", body),
            ("two lengths", as_json + length + b"content-length: 3\r\n", body),
            ("chunks", as_json + b"transfer-encoding: chunked\r\n", rng.choice(chunks)),
            ("both", as_json + length + b"transfer-encoding: chunked\r\n", body),
            ("encoding", as_json + b"transfer-encoding: gzip\r\n", body),
            ("gzip", as_json + b"content-encoding: gzip\r\n" + _length(packed := gzip.compress(body)), packed),
            ("type", b"content-type: text/plain\r\n" + length, body),
            ("type", b"content-type: application/json; charset=utf-16\r\n" + length, body),
            ("type", b"content-type: \xff\xfe\r\n" + length, body),
            ("header", as_json + b"x-filler: " + b"x" * 100_000 + b"\r\n" + length, body),
            ("header", as_json + b"no colon\r\n" + length, body),
        ]
    )


def _length(body: bytes) -> bytes:
    return f"content-length: {len(body)}\r\n".encode()


def requests(seed: int, model: str) -> Any:
    """Without end; the same for the same seed."""
    rng = Random(seed)
    while True:
        path = rng.choice(PATHS)
        make = rng.choice(GRAMMAR)
        body = make(rng, valid_fields(rng, model, path))
        if rng.random() < 0.15:
            kind, headers, body = http_nonsense(rng, body)
            yield Sent(kind, path, headers, body)
        else:
            yield Sent(make.__name__, path, b"content-type: application/json\r\n" + _length(body), body)


# -- what must be true of the answers ----------------------------------------------------------------------------------


async def exchange(url: str, sent: Sent) -> bytes:
    """All bytes of the answer. Sending stops where the server stops reading."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)

    async def send() -> None:
        try:
            writer.write(sent.raw())
            await writer.drain()
            if sent.kind in LEAVING:
                await asyncio.sleep(0.2)
                writer.write_eof()
        except OSError:
            pass

    sending = asyncio.create_task(send())
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        sending.cancel()
        writer.close()


def fault_of(sent: Sent, raw: bytes) -> tuple[int | None, str | None]:
    """The answer's status, and what is wrong with it; None: nothing."""
    if not raw:
        return None, None if sent.kind in LEAVING else "no answer"
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").lower().split("\r\n")
    status = int(lines[0].split()[1])
    headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
    if status >= 500:
        return status, "a server's mistake"
    if not headers.get("x-request-id"):
        return status, "no request id"
    if status < 400:
        kinds = ("application/json", "text/event-stream")
        return status, None if headers.get("content-type", "").startswith(kinds) else "wrong content type"
    if headers.get("content-type") != "application/json":
        return status, "wrong content type"
    if len(body) > MAX_REPLY_BYTES:
        return status, "a long answer"
    if CANARY.encode() in body:
        return status, "the input comes back"
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return status, "not the API's shape"
    keys = {"message", "type", "param", "code"}
    return status, None if keys <= set(error) <= {*keys, "details"} else "not the API's shape"


async def throw_bodies(
    url: str, model: str, seed: int, *, seconds: float | None = None, num_bodies: int | None = None, at_once: int = 8
) -> Report:
    """Sends until the time is over or so many are sent."""
    report = Report()
    source = requests(seed, model)
    ends_at = time.monotonic() + (seconds if seconds is not None else 1e9)
    num_left = num_bodies if num_bodies is not None else 1 << 60

    async def throw() -> None:
        nonlocal num_left
        while num_left > 0 and time.monotonic() < ends_at:
            num_left -= 1
            await _throw_one(url, next(source), report)

    await asyncio.gather(*(throw() for _ in range(at_once)))
    huge = b'{"prompt":"' + CANARY.encode() + b" " * HUGE_BODY_BYTES
    for path in PATHS[:2]:
        await _throw_one(url, Sent("huge", path, b"content-type: application/json\r\n" + _length(huge), huge), report)
    await _still_answers(url, model, report)
    return report


async def _throw_one(url: str, sent: Sent, report: Report) -> None:
    began = time.monotonic()
    try:
        raw = await exchange(url, sent)
    except TimeoutError:
        report.findings.append(f"{sent.kind} to {sent.path}: no answer in time: {sent.body[:200]!r}")
        return
    status, fault = fault_of(sent, raw)
    report.longest_seconds = max(report.longest_seconds, time.monotonic() - began)
    report.num_sent[sent.kind] += 1
    report.num_answers[status or 0] += 1
    if fault is not None:
        report.findings.append(f"{sent.kind} to {sent.path}: {status}, {fault}: {sent.body[:200]!r} {raw[:300]!r}")


async def _still_answers(url: str, model: str, report: Report) -> None:
    body = _json({"model": model, "prompt": "hi", "max_tokens": 2})
    sent = Sent("last", "/v1/completions", b"content-type: application/json\r\n" + _length(body), body)
    raw = await exchange(url, sent)
    if not raw.startswith(b"HTTP/1.1 200"):
        report.findings.append(f"a plain request isn't answered any more: {raw[:200]!r}")
