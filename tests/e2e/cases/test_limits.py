"""LIM: where an answer must end, and what can't begin at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.openai_api import CHAT, COMPLETIONS, Api, accepted, api_of, text_of
from tests.ullage_server import UllageServer, ullage_server

END_OF_TEXT, END_OF_TURN = 0, 2
BOTH_ENDS = {str(END_OF_TEXT): 100, str(END_OF_TURN): 100}
"""As logit_bias: the model wants to end at once."""
CONTEXT = 512
PROMPT_OF_300 = list(range(1000, 1300))


@pytest.fixture(scope="module")
def short_context_server(smollm2, tmp_path_factory) -> Iterator[UllageServer]:
    log = tmp_path_factory.mktemp("short-context") / "log"
    with ullage_server(smollm2, log, f"--max-model-len={CONTEXT}", "--kv-memory=64MiB") as server:
        yield server


@pytest.fixture
async def short_context_api(short_context_server) -> AsyncIterator[Api]:
    async with api_of(short_context_server.url) as api:
        yield api


@pytest.fixture(scope="module")
def long_context_server(smollm2, tmp_path_factory) -> Iterator[UllageServer]:
    """A context of 4,096 tokens, of which a pool of 16 blocks of 32 tokens can't hold an eighth."""
    log = tmp_path_factory.mktemp("long-context") / "log"
    with ullage_server(smollm2, log, "--max-model-len=4096", "--kv-memory=11520KiB") as server:
        yield server


@pytest.mark.parametrize("bias", [{}, BOTH_ENDS], ids=["free", "wants to end"])
async def test_an_end_that_is_ignored_ends_nothing(api, bias):
    answer = await api.chat("Say hi", ignore_eos=True, max_tokens=64, temperature=0, logit_bias=bias)
    assert answer["usage"]["completion_tokens"] == 64
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("bias", [{}, BOTH_ENDS], ids=["free", "wants to end"])
@pytest.mark.parametrize("prompt", [[504, 3575, 282, 4649, 314], PROMPT_OF_300], ids=["5 tokens", "300 tokens"])
async def test_the_least_tokens_are_counted_in_the_answer_alone_and_hold_back_both_ends(api, prompt, bias):
    fields = {"min_tokens": 32, "max_tokens": 64, "temperature": 0, "return_token_ids": True, "logit_bias": bias}
    answer = await api.complete(prompt, **fields)
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    token_ids = answer["choices"][0]["token_ids"]
    assert len(token_ids) == answer["usage"]["completion_tokens"] >= 32
    assert not {END_OF_TEXT, END_OF_TURN} & {*token_ids[:32]}
    if bias:
        assert len(token_ids) == 33
        assert answer["choices"][0]["finish_reason"] == "stop"


async def test_the_least_tokens_hold_back_a_stop_text_too(api):
    fields = {"max_tokens": 64, "temperature": 0, "ignore_eos": True, "stop": [" "]}
    prompt = "one two three four five six seven eight nine ten one two three four"
    assert (await api.complete(prompt, **fields))["usage"]["completion_tokens"] == 1
    answer = await api.complete(prompt, min_tokens=32, **fields)
    assert answer["usage"]["completion_tokens"] >= 33
    assert " " in text_of(answer)
    assert answer["choices"][0]["finish_reason"] == "stop"


async def test_more_at_least_than_at_most_is_refused(api):
    assert (await api.refused(COMPLETIONS, prompt="a", min_tokens=9, max_tokens=8))["param"] == "min_tokens"


async def test_a_conversation_longer_than_the_context_is_refused_and_never_cut(short_context_api):
    filler = "The harbour master wrote down the draught of every ship. " * 300
    messages = [
        {"role": "system", "content": "The code word is KESTREL."},
        {"role": "user", "content": f"{filler}What is the code word?"},
    ]
    for content in (filler, filler[: len(filler) // 6]):  # far too long, and so near that it is counted
        messages[1]["content"] = f"{content}What is the code word?"
        error = await short_context_api.refused(CHAT, messages=messages)
        assert error["type"] == "invalid_request_error"
        assert error["code"] == "context_length_exceeded"
        assert str(CONTEXT) in error["message"]
        assert any(int(number) > CONTEXT for number in error["message"].replace(",", "").split() if number.isdigit())


async def test_the_context_is_used_to_its_last_token_and_not_beyond(short_context_api):
    for num_tokens in (CONTEXT, CONTEXT + 1):
        error = await short_context_api.refused(COMPLETIONS, prompt=[1000] * num_tokens, max_tokens=1)
        assert error["code"] == "context_length_exceeded"
        assert str(num_tokens) in error["message"]
    answer = await short_context_api.complete([1000] * (CONTEXT - 1), max_tokens=1)
    assert answer["usage"]["total_tokens"] == CONTEXT


async def test_the_same_holds_for_a_conversation(short_context_api):
    async def chat(num_words: int, max_tokens: int):
        messages = [{"role": "user", "content": " a" * num_words}]
        return await short_context_api.post(CHAT, messages=messages, max_tokens=max_tokens)

    frame = accepted(await chat(100, 1))["usage"]["prompt_tokens"] - 100
    assert (await chat(CONTEXT - frame, 1)).status_code == (await chat(CONTEXT + 1 - frame, 1)).status_code == 400
    assert accepted(await chat(CONTEXT - 1 - frame, 1))["usage"]["total_tokens"] == CONTEXT


async def test_what_the_pool_can_never_hold_is_refused_and_keeps_nobody_waiting(long_context_server):
    async with api_of(long_context_server.url) as api:
        too_large = asyncio.create_task(api.refused(COMPLETIONS, prompt=[1000] * 1000, max_tokens=10))
        await asyncio.sleep(0.5)
        small = await api.complete([1000] * 10, max_tokens=10, ignore_eos=True)
        error = await too_large
        assert error["code"] == "kv_capacity_exceeded"
        assert "16" in error["message"], "the pool's blocks"
        assert small["choices"][0]["finish_reason"] == "length"
        together = await api.refused(COMPLETIONS, prompt=[1000] * 400, max_tokens=400, ignore_eos=True)
        assert together["code"] == "kv_capacity_exceeded"
        most = await api.complete([1000] * 400, max_tokens=112, ignore_eos=True)
        assert most["choices"][0]["finish_reason"] == "length"
        await api.until_idle()
    assert "the model could take 4,096 tokens, the pool can't" in long_context_server.log()
