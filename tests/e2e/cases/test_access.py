"""GW-02: limits of a minute and of requests at once, on the real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from tests.openai_api import COMPLETIONS, Api, api_of, error_of
from tests.ullage_server import UllageServer, ullage_server

from ullage.access.keys import KeyStore

FIVE = "requests_per_minute = 5\nconcurrent_requests = 1\n"
LIMITS = {
    "in turn": FIVE,
    "beside": FIVE,
    "at once": "requests_per_minute = 5\n",
    "tokens": "tokens_per_minute = 100\n",
    "refused": FIVE,
}


@dataclass(frozen=True)
class LimitedServer:
    server: UllageServer
    keys: dict[str, str]

    def api(self, tenant: str):
        return api_of(self.server.url, self.keys[tenant])


@pytest.fixture(scope="module")
def limited(smollm2, tmp_path_factory) -> Iterator[LimitedServer]:
    folder = tmp_path_factory.mktemp("limited")
    store = KeyStore(folder / "keys.db")
    text = "".join(f'[tenants."{tenant}"]\n{limits}\n' for tenant, limits in LIMITS.items())
    (folder / "limits.toml").write_text(text, "utf-8")
    keys = {tenant: store.create(tenant, "", ("inference", "observe"))[1] for tenant in LIMITS}
    flags = [f"--api-keys-file={folder / 'keys.db'}", f"--limits-file={folder / 'limits.toml'}"]
    with ullage_server(smollm2, folder / "log", "--max-model-len=4096", "--kv-memory=128MiB", *flags) as server:
        yield LimitedServer(server, keys)


async def ask(api: Api, max_tokens: int = 4, **fields: object) -> httpx.Response:
    asked = {"prompt": [1000] * 10, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0, **fields}
    return await api.post(COMPLETIONS, **asked)


def num_let_in(answers: list[httpx.Response]) -> int:
    for answer in answers:
        if answer.status_code != 200:
            assert answer.status_code == 429
            assert error_of(answer)["code"] == "rate_limit_exceeded"
            assert int(answer.headers["retry-after"]) >= 1
    return sum(answer.status_code == 200 for answer in answers)


async def test_of_six_in_turn_five_are_let_in(limited):
    async with limited.api("in turn") as api:
        assert num_let_in([await ask(api) for _ in range(6)]) == 5


async def test_what_is_refused_for_being_beside_another_costs_nothing(limited):
    async with limited.api("beside") as api:
        long = asyncio.create_task(ask(api, max_tokens=600))
        await api.until(lambda ledger: ledger["requests"]["running"] > 0)
        assert num_let_in([await ask(api) for _ in range(4)]) == 0
        assert (await long).status_code == 200
        assert num_let_in([await ask(api) for _ in range(6)]) == 4


async def test_of_twenty_at_one_instant_exactly_five_are_let_in(limited):
    async with limited.api("at once") as api:
        assert num_let_in(await asyncio.gather(*(ask(api) for _ in range(20)))) == 5


async def test_tokens_are_reserved_before_so_no_burst_gets_past_them(limited):
    async with limited.api("tokens") as api:
        answers = await asyncio.gather(*(ask(api, max_tokens=50) for _ in range(5)))
        assert num_let_in(answers) == 1
        assert num_let_in([await ask(api, max_tokens=30), await ask(api, max_tokens=1)]) == 1


async def test_what_is_malformed_costs_nothing_and_what_was_cancelled_counts(limited):
    async with limited.api("refused") as api:
        for _ in range(10):
            assert (await ask(api, temperature=9)).status_code == 400
        left = asyncio.create_task(ask(api, max_tokens=3000))
        await api.until(lambda ledger: ledger["requests"]["running"] > 0)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        await api.until_idle()
        assert num_let_in([await ask(api) for _ in range(6)]) == 4
