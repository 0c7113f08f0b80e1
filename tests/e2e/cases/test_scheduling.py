"""SCH: clients leave, requests are preempted, batches change, and nobody else's answer does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.model_fixtures import tiny_model, write_gguf
from tests.near_ties import COMPARED, assert_same_answer, choice_of
from tests.openai_api import CHAT, COMPLETIONS, Api, api_of, end_of, text_of
from tests.ullage_server import UllageServer, ullage_server

LONG = {"ignore_eos": True, "max_tokens": 4000, "temperature": 0}


def raw_request(**fields: object) -> bytes:
    body = json.dumps({"model": "smollm2", **fields}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def leave(url: str, request: bytes, when: Awaitable[object], *, half: bool = False) -> None:
    """Sends a request; closes the connection, or only its own side of it, before the answer's end."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(request)
        await when
        if half:
            writer.write_eof()
            while await reader.read(1 << 16):  # what was on its way
                pass
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


MESSAGES = [{"role": "user", "content": "Count to ten thousand."}]
LEAVERS: dict[str, dict[str, Any]] = {
    "streamed": {"stream": True, "messages": MESSAGES},
    "plain": {"stream": False, "messages": MESSAGES},
    "two choices": {"stream": True, "messages": MESSAGES, "n": 2},
    "two choices, plain": {"messages": MESSAGES, "n": 2},
    "in its prompt": {"stream": True, "messages": [{"role": "user", "content": "one two three " * 1200}]},
}


@pytest.mark.parametrize("half", [False, True], ids=["closed", "half closed"])
@pytest.mark.parametrize("name", LEAVERS)
async def test_who_has_left_holds_nothing_any_more(server, api, name, half):
    fields = {**LONG, **LEAVERS[name]} | ({"max_tokens": 300} if name == "in its prompt" else {})
    num_choices = fields.get("n", 1)
    before = await api.until_idle()
    runs = api.until(lambda ledger: ledger["requests"]["running"] >= num_choices)
    await leave(server.url, raw_request(**fields), runs, half=half)
    after = await api.until_idle()
    assert sum(after["requests"]["aborts"].values()) == sum(before["requests"]["aborts"].values()) + num_choices
    if name == "in its prompt":
        assert after["tokens"]["prompt"] - before["tokens"]["prompt"] < 3000, "the whole prompt was computed"


async def test_two_hundred_who_leave_at_random_times_leave_nothing(server, api):
    rng = random.Random(1)
    await api.until_idle()
    places = asyncio.Semaphore(16)

    async def come_and_leave(index: int) -> None:
        words = " ".join(str(rng.random()) for _ in range(rng.randrange(1, 40)))
        request = raw_request(messages=[{"role": "user", "content": words}], stream=rng.random() < 0.5, **LONG)
        async with places:
            await leave(server.url, request, asyncio.sleep(rng.random() * 0.2))

    async def crowd(count: int) -> int:
        await asyncio.gather(*(come_and_leave(i) for i in range(count)))
        return (await api.until_idle())["measured"]["engine_process_resident_bytes"]

    warm = await crowd(40)
    assert await crowd(200) <= warm + (16 << 20)
    metrics = await api.metrics()
    assert metrics["ullage_num_requests_running"] == metrics["ullage_num_requests_waiting"] == 0
    full = await api.complete([1000 + i for i in range(4000)], max_tokens=96, ignore_eos=True)
    assert full["usage"]["total_tokens"] == 4096


# -- a pool that is too small ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def solo_server(smollm2, tmp_path_factory) -> Iterator[UllageServer]:
    """One request in a step, in a large pool: what each says when nobody disturbs it."""
    log = tmp_path_factory.mktemp("solo") / "log"
    with ullage_server(smollm2, log, "--max-model-len=4096", "--kv-memory=128MiB", "--max-num-seqs=1") as server:
        yield server


@pytest.fixture
async def solo_api(solo_server) -> AsyncIterator[Api]:
    async with api_of(solo_server.url) as api:
        yield api


def prompt(number: int, num_tokens: int) -> list[int]:
    return [random.Random(number * 1000 + i).randrange(100, 40_000) for i in range(num_tokens)]


NUM_STREAMS, NUM_CLOSED = 6, 40


async def test_leaving_while_others_are_preempted_changes_no_answer_and_ends_nothing(
    small_pool_server, small_pool_api, solo_api
):
    """The reported three minutes are cut to 40 streams that are closed, one after another."""
    api, rng = small_pool_api, random.Random(5)
    fields = {"max_tokens": 150, "temperature": 0, "ignore_eos": True, **COMPARED}
    before = (await api.until_idle())["requests"]
    whole: dict[int, list[Any]] = {}

    async def one(number: int) -> None:
        whole[number] = await api.stream(COMPLETIONS, prompt=prompt(number % 8, 60), **fields)

    async def close(task: asyncio.Task[None]) -> None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    running: list[asyncio.Task[None]] = []
    number = 0
    for _ in range(NUM_CLOSED):
        running = [task for task in running if not task.done()]
        while len(running) < NUM_STREAMS:
            running.append(asyncio.create_task(one(number)))
            number += 1
        await asyncio.sleep(0.1)
        await close(running.pop(rng.randrange(len(running))))
    await asyncio.gather(*running)
    after = (await api.until_idle())["requests"]
    assert after["preemptions"] > before["preemptions"]
    assert small_pool_server.process.poll() is None
    assert "rror" not in small_pool_server.log().partition("serving on")[2]
    assert len(whole) >= 5
    alone = {n: await solo_api.complete(prompt(n, 60), **fields) for n in {number % 8 for number in whole}}
    for number, events in whole.items():
        assert_same_answer(events, alone[number % 8])


# -- preemption --------------------------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {"words": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 30}},
    "required": ["words"],
    "additionalProperties": False,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeds": {"temperature": 1},
    "penalty": {"temperature": 1, "presence_penalty": 1},
    "stop text": {"temperature": 1},
    "schema": {
        "temperature": 0,
        "ignore_eos": False,
        "response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": SCHEMA, "strict": True}},
    },
}
ENDS_AT_ONCE = {"logit_bias": {"100": 100}, "stop_token_ids": [100], "max_tokens": 150, "temperature": 0}


async def four_at_once(api: Api, prompts: list[list[int]], asked: dict[str, Any]) -> list[list[Any]]:
    """Their events; more of them than the pool has room for, so that some must begin again."""
    # Short answers first: long ones are then expected to be short as well, and too many start.
    await asyncio.gather(*(api.complete(prompts[0][:4], **ENDS_AT_ONCE) for _ in range(60)))
    before = (await api.until_idle())["requests"]["preemptions"]
    options = {"include_usage": True}
    streams = [
        api.stream(COMPLETIONS, prompt=token_ids, seed=i, stream_options=options, **asked)
        for i, token_ids in enumerate(prompts)
    ]
    all_events = await asyncio.gather(*streams)
    assert (await api.until_idle())["requests"]["preemptions"] > before
    return all_events


@pytest.mark.parametrize("name", ["greedy", "schema"])
async def test_a_preempted_request_goes_on_as_if_nothing_had_happened(small_pool_api, solo_api, name):
    asked = {"max_tokens": 150, "ignore_eos": True, **COMPARED, **VARIANTS[name]}
    prompts = [prompt(i, 100) for i in range(4)]
    for i, (*events, usage, done) in enumerate(await four_at_once(small_pool_api, prompts, asked)):
        alone = await solo_api.complete(prompts[i], seed=i, **asked)
        assert usage["usage"]["prompt_tokens"] == 100
        assert_same_answer([*events, done], alone)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """A tiny model for the plain runner, whose rounding hardly depends on the batch: equal means equal here."""
    return write_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", tiny_model("llama"))


@pytest.fixture(scope="module")
def tiny_servers(tiny, tmp_path_factory) -> Iterator[tuple[UllageServer, UllageServer]]:
    """Pools of about 600 tokens and of ten times as many."""
    folder = tmp_path_factory.mktemp("pools")
    with (
        ullage_server(tiny, folder / "small", "--kv-memory=480KiB", "--runner=numpy") as small,
        ullage_server(tiny, folder / "large", "--kv-memory=4800KiB", "--runner=numpy") as large,
    ):
        yield small, large


@pytest.mark.parametrize("name", VARIANTS)
async def test_to_the_token_and_the_last_digits_where_rounding_allows_it(tiny_servers, name):
    small, large = tiny_servers
    asked = {"max_tokens": 150, "ignore_eos": True, "logprobs": 5, "return_token_ids": True, **VARIANTS[name]}
    prompts = [[token_id % 256 for token_id in prompt(i, 100)] for i in range(4)]
    async with api_of(small.url) as small_api, api_of(large.url) as large_api:
        if name == "stop text":
            texts = [text_of(await large_api.complete(prompts[i], seed=i, **asked)) for i in range(4)]
            asked["stop"] = [text[len(text) * 4 // 5 :][:6] for text in texts]
        all_events = await four_at_once(small_api, prompts, asked)
        for i, (*events, usage, done) in enumerate(all_events):
            whole = await large_api.complete(prompts[i], seed=i, **asked)
            choice, streamed = whole["choices"][0], choice_of([*events, done])
            assert streamed["token_ids"] == choice["token_ids"]
            assert streamed["text"] == choice["text"]
            assert end_of([*events, done]) == choice["finish_reason"]
            assert streamed["logprobs"] == pytest.approx(choice["logprobs"]["token_logprobs"], abs=0.01)
            assert (await large_api.ledger())["requests"]["preemptions"] == 0
            for counted in ("prompt_tokens", "completion_tokens", "total_tokens"):
                assert usage["usage"][counted] == whole["usage"][counted]


# -- batches -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_thread_server(smollm2, tmp_path_factory) -> Iterator[UllageServer]:
    log = tmp_path_factory.mktemp("one-thread") / "log"
    with ullage_server(smollm2, log, "--threads=1", "--max-model-len=4096", "--kv-memory=64MiB") as server:
        yield server


@pytest.mark.parametrize("threads", ["one thread", "all threads"])
async def test_a_greedy_text_parts_only_where_the_best_two_are_nearly_equal(request, threads):
    server = request.getfixturevalue("one_thread_server" if threads == "one thread" else "server")
    fields = {"temperature": 0, "max_tokens": 100, "ignore_eos": True, **COMPARED}
    text = "The harbour master wrote down the draught of every ship that came in with the tide."
    async with api_of(server.url) as api:
        await api.complete(text, **fields)  # the prompt is cached from here on
        alone = [await api.complete(text, **fields) for _ in range(10)]
        together = await asyncio.gather(*(api.stream(COMPLETIONS, prompt=text, **fields) for _ in range(8)))
        mixed, *_ = await asyncio.gather(
            api.stream(COMPLETIONS, prompt=text, **fields),
            *(api.complete(prompt(i, 20 * (i + 1)), **fields) for i in range(7)),
        )
    assert len({text_of(answer) for answer in alone}) == 1
    for events in [*together, mixed]:
        assert_same_answer(events, alone[0])
