"""The whole way: HTTP, scheduler, KV pool, and the runner that proves the blocks right."""

from __future__ import annotations

import asyncio
import random

import httpx
from tests.http_server import app_client, events_of, running_server, until
from tests.scripted_engine import EOS, ByteTokenizer

from ullage.engine.core import EngineCore
from ullage.engine.embedded import EmbeddedEngine
from ullage.engine.fake_runner import FakeRunner
from ullage.engine.kv_cache import KVCacheConfig
from ullage.engine.scheduler import SchedulerConfig
from ullage.plan.block_demand import BlockDemand
from ullage.plan.ledger import MemoryLedger

NUM_BLOCKS, BLOCK_SIZE, TOKEN_BYTES = 32, 4, 8


def make_engine(
    *,
    step_seconds: float = 0.0,
    eos_probability: float = 0.0,
    num_blocks: int = NUM_BLOCKS,
    runner_class: type[FakeRunner] = FakeRunner,
) -> EmbeddedEngine:
    """128 tokens in the pool, and a context of 200, unless it has more blocks."""
    runner = runner_class(
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        vocab_size=ByteTokenizer.vocab_size,
        eos_token_id=EOS,
        eos_probability=eos_probability,
        step_seconds=step_seconds,
    )
    core = EngineCore(
        runner,
        KVCacheConfig(num_blocks, BlockDemand(BLOCK_SIZE), TOKEN_BYTES),
        SchedulerConfig(
            max_model_len=200 if num_blocks == NUM_BLOCKS else num_blocks * BLOCK_SIZE,
            max_num_seqs=4,
            max_num_batched_tokens=16,
            max_waiting_requests=40,
        ),
        ledger=MemoryLedger({"kv_pool": num_blocks * BLOCK_SIZE * TOKEN_BYTES}),
        vocab_size=ByteTokenizer.vocab_size,
        eos_token_ids=[EOS],
    )
    return EmbeddedEngine(core, ByteTokenizer())


async def test_streamed_and_plain_answers_are_equal_alone_and_together():
    async with app_client(make_engine(eos_probability=0.02)) as client:

        async def ask(prompt: str, stream: bool) -> tuple[str, list[int]]:
            fields = {"model": "tiny", "prompt": prompt, "max_tokens": 40, "return_token_ids": True, "stream": stream}
            response = await client.post("/v1/completions", json=fields)
            if not stream:
                choice = response.json()["choices"][0]
                return choice["text"], choice["token_ids"]
            *chunks, done = events_of(response.text)
            assert done == "[DONE]"
            pieces = [chunk["choices"][0] for chunk in chunks]
            token_ids = [token_id for piece in pieces for token_id in piece.get("token_ids", [])]
            return "".join(piece["text"] for piece in pieces), token_ids

        prompts = [f"prompt number {i}, and some more" for i in range(8)]
        alone = [await ask(prompt, stream=False) for prompt in prompts]
        together = await asyncio.gather(*(ask(prompt, stream=bool(i % 2)) for i, prompt in enumerate(prompts)))
        assert list(together) == alone
        assert len({text for text, _ in alone}) == 8


async def test_three_choices_share_a_prompt_and_count_it_once():
    async with app_client(make_engine()) as client:
        messages = [{"role": "user", "content": "hi"}]
        fields = {"model": "tiny", "messages": messages, "n": 3, "max_tokens": 10, "logprobs": True}
        body = (await client.post("/v1/chat/completions", json=fields)).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [len(choice["logprobs"]["content"]) for choice in body["choices"]] == [10] * 3
    assert body["usage"]["prompt_tokens"] == len(b"user: hi\nassistant:")
    assert body["usage"]["completion_tokens"] == 30


async def test_what_can_never_fit_is_refused_with_numbers_and_a_default_always_fits():
    async with app_client(make_engine()) as client:

        async def complete(prompt: str, **fields: object) -> httpx.Response:
            return await client.post("/v1/completions", json={"model": "tiny", "prompt": prompt, **fields})

        too_long = (await complete("x" * 150, max_tokens=60)).json()["error"]
        too_large = (await complete("x" * 100, max_tokens=60)).json()["error"]
        chat = await client.post(
            "/v1/chat/completions", json={"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
        )
        foreign = (await complete("a", logit_bias={"999": 1})).json()["error"]
    assert (too_long["code"], too_long["param"]) == ("context_length_exceeded", "max_tokens")
    assert all(number in too_long["message"] for number in ("150", "60", "200"))
    assert too_large["code"] == "kv_capacity_exceeded"
    assert all(number in too_large["message"] for number in ("100", "60", "32", "128"))
    assert chat.json()["usage"]["total_tokens"] == NUM_BLOCKS * BLOCK_SIZE
    assert foreign["param"] == "logit_bias"


async def test_a_second_ask_finds_the_prompt_in_the_cache():
    async with app_client(make_engine()) as client:
        fields = {"model": "tiny", "prompt": "the same prompt twice", "max_tokens": 4}
        cold, warm = [(await client.post("/v1/completions", json=fields)).json() for _ in range(2)]
    assert cold["choices"] == warm["choices"]
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == 20


async def test_clients_that_leave_at_any_moment_leave_no_block_behind():
    engine = make_engine(step_seconds=0.001)
    draw = random.Random(7)
    async with running_server(engine) as server, httpx.AsyncClient(timeout=30) as client:

        async def ask_and_leave(i: int) -> None:
            fields = {
                "model": "tiny",
                "prompt": f"{i} " * draw.randint(1, 20),
                "max_tokens": 60,
                "ignore_eos": True,
                "n": draw.randint(1, 2),
                "stream": draw.random() < 0.5,
            }
            asking = asyncio.create_task(client.post(f"{server.url}/v1/completions", json=fields))
            await asyncio.wait([asking], timeout=draw.random() * 0.05)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

        for first in range(0, 48, 16):
            await asyncio.gather(*(ask_and_leave(i) for i in range(first, first + 16)))
        await until(lambda: engine.status().num_running + engine.status().num_waiting == 0)
        ledger = (await client.get(f"{server.url}/v1/ledger")).json()
        assert ledger["kv_pool"]["reserved_bytes"] == ledger["kv_pool"]["used_bytes"] == 0
        fields = {"model": "tiny", "prompt": "x" * 100, "max_tokens": 28, "ignore_eos": True}
        assert (await client.post(f"{server.url}/v1/completions", json=fields)).status_code == 200


LONG = {"model": "tiny", "prompt": "hello", "max_tokens": 100, "ignore_eos": True}


async def test_a_late_request_is_answered_504_and_a_late_stream_ends_with_an_error_event():
    async with app_client(make_engine(step_seconds=0.01)) as client:
        late = await client.post("/v1/completions", json={**LONG, "request_timeout": 0.1})
        assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert late.headers["x-should-retry"] == "false"
        stream = await client.post(
            "/v1/completions", json={**LONG, "stream": True}, headers={"x-request-timeout": "0.1"}
        )
        *chunks, error = events_of(stream.text)
        assert stream.status_code == 200
        assert error["error"]["code"] == "deadline_exceeded"
        assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)


async def test_a_time_that_is_none_is_refused_by_name():
    async with app_client(make_engine()) as client:
        for fields, headers, name in (
            ({"request_timeout": 0}, {}, "request_timeout"),
            ({}, {"x-request-timeout": "soon"}, "x-request-timeout"),
        ):
            response = await client.post("/v1/completions", json={**LONG, **fields}, headers=headers)
            assert response.status_code == 400
            assert name in response.text


async def test_a_full_queue_is_told_with_the_numbers():
    engine = make_engine(step_seconds=0.01)
    async with app_client(engine) as client:
        waiting = [asyncio.ensure_future(client.post("/v1/completions", json={**LONG, "n": 22})) for _ in range(2)]
        await until(lambda: len(engine._accepted) == 44)
        response = await client.post("/v1/completions", json=LONG)
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) >= 1
        details = response.json()["error"]["details"]
        assert (details["max_waiting_requests"], details["requests_in_work"]) == (40, 44)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
