"""What only completions have: prompts that come back, and the best of many outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest
from tests.http_server import app_client, events_of
from tests.scripted_engine import ScriptedEngine, outputs_for

from ullage.engine.client import GenerationOutput, GenerationRequest


async def complete(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post("/v1/completions", json={"model": "tiny", "prompt": "hi", **fields})


async def test_an_echo_of_no_tokens_is_the_prompt_and_asks_nothing_of_the_engine():
    engine = ScriptedEngine()
    async with app_client(engine) as client:
        body = (await complete(client, echo=True, max_tokens=0, prompt=["hi", "you"], n=2)).json()
    assert [choice["text"] for choice in body["choices"]] == ["hi", "hi", "you", "you"]
    assert {choice["finish_reason"] for choice in body["choices"]} == {"length"}
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (5, 0)
    assert engine.requests == []


async def test_an_echo_of_no_tokens_is_streamed_like_any_other():
    async with app_client(ScriptedEngine()) as client:
        fields = {"echo": True, "max_tokens": 0, "stream": True, "stream_options": {"include_usage": True}}
        response = await complete(client, **fields)
    *chunks, last, done = events_of(response.text)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["hi", ""]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, "length"]
    assert {chunk["usage"] for chunk in chunks} == {None}
    assert (last["choices"], last["usage"]["total_tokens"], done) == ([], 2, "[DONE]")


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"prompt": [5000]}, "prompt"), ({"prompt": [-1]}, "prompt"), ({"temperature": 3}, "temperature")],
)
async def test_an_echo_of_no_tokens_is_checked_like_any_other(fields, param):
    async with app_client(ScriptedEngine()) as client:
        response = await complete(client, echo=True, max_tokens=0, **fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def surer_each_time(request: GenerationRequest) -> list[GenerationOutput]:
    """The surer, the larger the seed; longer too, so that a sum would tell otherwise."""
    assert request.sampling.seed is not None
    number = request.sampling.seed
    (output,) = outputs_for(request, [str(number) * number])
    logprobs = tuple(replace(token, logprob=-1.0 / number) for token in output.logprobs)
    return [replace(output, logprobs=logprobs)]


async def test_the_best_of_many_are_returned_and_all_are_counted():
    engine = ScriptedEngine(surer_each_time)
    async with app_client(engine) as client:
        body = (await complete(client, n=2, best_of=4, seed=1, prompt=["a", "b"])).json()
    assert [choice["text"] for choice in body["choices"]] == ["4444", "333", "4444", "333"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert all(choice["logprobs"] is None for choice in body["choices"])
    assert body["usage"]["completion_tokens"] == 2 * (1 + 2 + 3 + 4)
    assert len(engine.requests) == 8


async def test_the_best_keep_the_log_probabilities_that_were_asked_for():
    async with app_client(ScriptedEngine(surer_each_time)) as client:
        body = (await complete(client, best_of=3, seed=1, logprobs=1)).json()
    assert body["choices"][0]["logprobs"]["token_logprobs"] == [-1 / 3] * 3


async def test_the_engine_must_take_all_candidates_at_once():
    engine = ScriptedEngine()
    engine.max_requests = 3
    async with app_client(engine) as client:
        response = await complete(client, best_of=4)
    assert response.status_code == 400
