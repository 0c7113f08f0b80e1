"""Clients that behave as badly as real ones: they leave, they read slowly, they come in crowds. Each notes how its
requests ended.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx

LIMIT_SECONDS = 180.0
"""A request that took longer is said to hang."""
EXPECTED_REFUSALS = {
    (429, "queue_full"),
    (429, "rate_limit_exceeded"),
    (503, "engine_restarting"),
    (503, "engine_failed"),
}
WORDS = ("the", "river", "counts", "鱼", "seven", "and", "then", "🦜", "a", "night", "of", "stone")


@dataclass(slots=True)
class Account:
    """What all clients saw."""

    endings: Counter[str] = field(default_factory=Counter)
    completed: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Request id -> prompt and generated tokens, as the answer's ``usage`` says."""
    sent: set[str] = field(default_factory=set)
    """Ids of requests that were sent whole: the server must have a line for each."""
    findings: list[str] = field(default_factory=list)

    def find(self, request_id: str, what: str) -> None:
        self.findings.append(f"{request_id}: {what}")


class Client:
    """One of the crowd.

    :param http: a client with the address and the key
    """

    def __init__(self, name: str, http: httpx.AsyncClient, account: Account, seed: int) -> None:
        self._name = name
        self._http = http
        self._account = account
        self._random = random.Random(seed)
        self._num_sent = 0

    async def run(self, until: float) -> None:
        while time.monotonic() < until:
            await self.ask()
            await asyncio.sleep(self._random.expovariate(2.0))

    async def ask(self) -> None:
        """One request, to its end."""
        self._num_sent += 1
        request_id = f"{self._name}-{self._num_sent}"
        path, body = self._body()
        leave_after = self._random.expovariate(1.0) if self._random.random() < 0.3 else None
        read_slowly = self._random.random() < 0.1
        self._account.sent.add(request_id)
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                async with asyncio.timeout(leave_after) as patience:
                    ending = await self._ask(request_id, path, body, read_slowly)
        except TimeoutError:
            if patience.expired():
                ending = "left"
            else:
                ending = "hung"
                self._account.find(request_id, "no end")
        except httpx.HTTPError as error:
            ending = "broken"
            self._account.find(request_id, f"{type(error).__name__}: {error}")
        self._account.endings[ending] += 1

    def _body(self) -> tuple[str, dict[str, Any]]:
        rng = self._random
        text = " ".join(rng.choices(WORDS, k=rng.choice((1, 5, 30, 150))))
        body: dict[str, Any] = {"model": "tiny", "max_tokens": rng.choice((1, 8, 40, 120)), "n": rng.choice((1, 1, 2))}
        body |= {"ignore_eos": rng.random() < 0.5, "temperature": rng.choice((0, 1)), "seed": rng.randrange(100)}
        if rng.random() < 0.5:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if rng.random() < 0.5:
            return "/v1/completions", body | {"prompt": text}
        return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": text}]}

    async def _ask(self, request_id: str, path: str, body: dict[str, Any], read_slowly: bool) -> str:
        async with self._http.stream("POST", path, json=body, headers={"x-request-id": request_id}) as answer:
            if answer.headers.get("x-request-id") != request_id:
                self._account.find(request_id, "another request's id on the answer")
            if answer.status_code != 200:
                return self._refused(request_id, answer.status_code, await answer.aread())
            if not body.get("stream"):
                return self._whole(request_id, json.loads(await answer.aread()), body["n"])
            return await self._stream(request_id, _lines(answer, self._random if read_slowly else None), body["n"])

    def _refused(self, request_id: str, status: int, data: bytes) -> str:
        code = json.loads(data)["error"]["code"]
        if (status, code) not in EXPECTED_REFUSALS:
            self._account.find(request_id, f"answered {status} {code}")
        return f"refused {code}"

    def _whole(self, request_id: str, answer: dict[str, Any], num_choices: int) -> str:
        reasons = [choice["finish_reason"] for choice in answer["choices"]]
        if len(reasons) != num_choices or not set(reasons) <= {"stop", "length"}:
            self._account.find(request_id, f"finish reasons {reasons}")
        self._complete(request_id, answer["usage"])
        return "whole"

    async def _stream(self, request_id: str, lines: AsyncIterator[str], num_choices: int) -> str:
        """Exactly one end: every choice's reason and then ``[DONE]``, or one error and nothing after it."""
        reasons: dict[int, str] = {}
        ends: list[str] = []
        usage = None
        async for line in lines:
            if not line.startswith("data: "):
                continue
            if ends:
                self._account.find(request_id, f"{line!r} after the end")
            if line == "data: [DONE]":
                ends.append("stream")
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                ends.append(f"error event {event['error']['code']}")
                continue
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                if choice["finish_reason"] is not None:
                    if choice["index"] in reasons:
                        self._account.find(request_id, f"choice {choice['index']} ended twice")
                    reasons[choice["index"]] = choice["finish_reason"]
        if len(ends) != 1:
            self._account.find(request_id, f"a stream with the ends {ends}")
            return "broken"
        if ends[0] == "stream":
            if sorted(reasons) != list(range(num_choices)) or not set(reasons.values()) <= {"stop", "length"}:
                self._account.find(request_id, f"finish reasons {reasons}")
            self._complete(request_id, usage or {})
        return ends[0]

    def _complete(self, request_id: str, usage: dict[str, int]) -> None:
        self._account.completed[request_id] = (usage["prompt_tokens"], usage["completion_tokens"])


async def _lines(answer: httpx.Response, slowly: random.Random | None) -> AsyncIterator[str]:
    async for line in answer.aiter_lines():
        if slowly is not None:
            await asyncio.sleep(slowly.random() * 0.1)
        yield line
