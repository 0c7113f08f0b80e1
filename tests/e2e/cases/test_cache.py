"""CAC: cached prefixes change no answer, and no tenant finds what another one left."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.openai_api import COMPLETIONS, Api, Json, api_of, text_of
from tests.ullage_server import UllageServer, ullage_server

from ullage.access.keys import KeyStore

BLOCK = 32
COLD_NATS = 0.15
"""A cold run computes a prompt in one piece, a warm one its last part alone: they round as two batches do."""
WARM_NATS = 0.001


def fresh_prompt(seed: int, num_tokens: int) -> list[int]:
    rng = random.Random(f"cache {seed}")
    return [rng.randrange(100, 40_000) for _ in range(num_tokens)]


async def ask(api: Api, prompt: list[int], **fields: object) -> Json:
    asked = {"max_tokens": 8, "temperature": 0, "ignore_eos": True, "logprobs": 2, "return_token_ids": True, **fields}
    return await api.complete(prompt, **asked)


def cached_tokens(answer: Json) -> int:
    usage = answer["usage"]
    found: int = usage["prompt_tokens_details"]["cached_tokens"]
    assert 0 <= found <= usage["prompt_tokens"] - 1
    return found


def assert_equal(answer: Json, other: Json, nats: float) -> None:
    """Token for token, unless the best two are that close to each other."""
    ours, theirs = answer["choices"][0], other["choices"][0]
    assert answer["usage"]["prompt_tokens"] == other["usage"]["prompt_tokens"]
    for i, (a, b) in enumerate(zip(ours["token_ids"], theirs["token_ids"], strict=True)):
        if a != b:
            best = sorted(ours["logprobs"]["top_logprobs"][i].values())[-2:]
            assert best[1] - best[0] <= nats, f"token {i}"
            return
        assert ours["logprobs"]["token_logprobs"][i] == pytest.approx(theirs["logprobs"]["token_logprobs"][i], abs=nats)


@pytest.mark.parametrize("num_tokens", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1])
async def test_a_prompt_that_is_asked_again_is_answered_alike(api, num_tokens):
    prompt = fresh_prompt(num_tokens, num_tokens)
    cold, warm, again = [await ask(api, prompt) for _ in range(3)]
    assert cached_tokens(cold) == 0
    assert cached_tokens(warm) == cached_tokens(again) == (num_tokens - 1) // BLOCK * BLOCK
    assert_equal(warm, cold, COLD_NATS)
    assert_equal(again, warm, WARM_NATS)


async def test_prompts_that_share_a_beginning_do_not_mix(api):
    long = fresh_prompt(100, 3 * BLOCK)
    await ask(api, long)
    for prompt in ([*long[:-1], 77], long[: 2 * BLOCK], long[: 2 * BLOCK + 5], long[: BLOCK - 1]):
        warm, cold = await ask(api, prompt), await ask(api, prompt, cache_salt=f"cold {len(prompt)}")
        assert cached_tokens(warm) == (len(prompt) - 1) // BLOCK * BLOCK
        assert cached_tokens(cold) == 0
        assert_equal(warm, cold, COLD_NATS)


async def test_what_was_evicted_is_computed_again(small_pool_api):
    prompt = fresh_prompt(200, 2 * BLOCK + 1)
    first = await ask(small_pool_api, prompt)
    assert cached_tokens(await ask(small_pool_api, prompt)) == 2 * BLOCK
    for seed in range(4):
        await ask(small_pool_api, fresh_prompt(201 + seed, 500))
    again = await ask(small_pool_api, prompt)
    assert cached_tokens(again) == 0
    assert_equal(again, first, WARM_NATS)


async def test_what_a_cancelled_request_left_half_computed_is_not_used(api):
    prompt = fresh_prompt(300, 2000)
    before = (await api.until_idle())["tokens"]["prompt"]
    leaving = asyncio.create_task(ask(api, prompt))
    await api.until(lambda ledger: ledger["tokens"]["prompt"] > before or ledger["requests"]["running"] > 0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    computed = (await api.until_idle())["tokens"]["prompt"] - before
    assert computed < len(prompt), "it wasn't cancelled in its prompt"
    again = await ask(api, prompt)
    assert cached_tokens(again) <= computed
    assert_equal(again, await ask(api, prompt, cache_salt="cold"), COLD_NATS)


# -- tenants -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TenantServer:
    server: UllageServer
    keys: dict[str, str]


@pytest.fixture(scope="module")
def tenant_server(smollm2, tmp_path_factory) -> Iterator[TenantServer]:
    folder: Path = tmp_path_factory.mktemp("tenants")
    store = KeyStore(folder / "keys.db")
    tenants = ("A", "B", "a", "ab", "tenant:1:A")
    keys = {name: store.create(name, name, ("inference", "observe"))[1] for name in tenants}
    flags = ("--max-model-len=1024", "--kv-memory=128MiB", f"--api-keys-file={folder / 'keys.db'}")
    flags += ("--probe-interval-seconds=0",)  # each prompt token is counted below
    with ullage_server(smollm2, folder / "log", *flags) as server:
        yield TenantServer(server, keys)


@pytest.fixture
def tenants(tenant_server) -> Callable[[str], AbstractAsyncContextManager[Api]]:
    """An API for each tenant, by name."""
    return lambda name: api_of(tenant_server.server.url, tenant_server.keys[name])


async def test_a_tenant_finds_nothing_of_what_another_one_left(tenants):
    """Told by what is computed, not by how long it takes: nothing else could make a difference in time."""
    async with tenants("A") as a, tenants("B") as b:
        for i in range(30):
            num_tokens, num_shared = (600, 600) if i == 0 else (3 * BLOCK + 1, (1 + i % 3) * BLOCK)
            prompt = fresh_prompt(400 + i, num_tokens)
            cold = await ask(a, prompt, max_tokens=8 if i == 0 else 1)
            assert cached_tokens(await ask(a, prompt, max_tokens=1)) == (num_tokens - 1) // BLOCK * BLOCK
            before = (await b.ledger())["tokens"]["prompt"]
            other = await ask(
                b, prompt[:num_shared] + fresh_prompt(800 + i, num_tokens - num_shared), max_tokens=8 if i == 0 else 1
            )
            assert cached_tokens(other) == 0
            assert (await b.ledger())["tokens"]["prompt"] - before == num_tokens
            if num_shared == num_tokens:
                assert_equal(other, cold, COLD_NATS)


async def test_no_salt_of_a_client_makes_it_another_tenant(tenants):
    prompt = fresh_prompt(600, 3 * BLOCK)

    async def found(tenant: str, **fields: object) -> int:
        async with tenants(tenant) as api:
            return cached_tokens(await ask(api, prompt, max_tokens=1, **fields))

    assert await found("A", cache_salt="s") == 0
    assert await found("A", cache_salt="s") == 2 * BLOCK
    assert await found("A") == 0
    assert await found("B", cache_salt="s") == 0
    for forged in ("A", "A:s", "tenant:1:A:s", "1:A:s"):
        assert await found("B", cache_salt=forged) == 0, forged
    assert await found("tenant:1:A", cache_salt="s") == 0
    assert await found("ab", cache_salt="c") == 0
    assert await found("a", cache_salt="bc") == 0
    async with tenants("B") as b:
        error = await b.refused(COMPLETIONS, prompt=prompt, cache_salt="")
        assert error["param"] == "cache_salt"
        assert text_of(await ask(b, prompt))
