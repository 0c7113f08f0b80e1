"""Limits and quotas of tenants, over HTTP: what runs is real, and so are the stores."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
import redis
from tests.http_server import app_client, until
from tests.integration.test_http_embedded import make_engine
from tests.redis_server import redis_server

from ullage.access.allowances import Allowances, open_allowances
from ullage.access.config import AccessConfig
from ullage.access.keys import KeyStore
from ullage.base.errors import ConfigError
from ullage.engine.embedded import EmbeddedEngine
from ullage.engine.fake_runner import FakeRunner

PROMPT = "twelve bytes"
ADDRESS = "/v1/completions"


@asynccontextmanager
async def limited(
    tmp_path, limits: str, engine: EmbeddedEngine | None = None, **settings: str
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of tenant ``acme``."""
    (tmp_path / "limits.toml").write_text(limits, "utf-8")
    _, text = KeyStore(tmp_path / "keys.db").create("acme", "", ("inference", "observe"))
    access = AccessConfig(
        api_keys_file=str(tmp_path / "keys.db"), limits_file=str(tmp_path / "limits.toml"), **settings
    )
    async with app_client(engine or make_engine(), access=access) as client:
        client.headers["authorization"] = f"Bearer {text}"
        yield client


def allowances_of(client: httpx.AsyncClient) -> Allowances:
    return client._transport.app.state.service.allowances


async def reload(client: httpx.AsyncClient) -> list[str]:
    return await client._transport.app.state.service.reloads.reload()


async def ask(client: httpx.AsyncClient, max_tokens: int = 8, **fields: object) -> httpx.Response:
    return await client.post(
        ADDRESS, json={"model": "tiny", "prompt": PROMPT, "max_tokens": max_tokens, "ignore_eos": True, **fields}
    )


def codes(answers: list[httpx.Response]) -> list[int]:
    return sorted(answer.status_code for answer in answers)


def refused_for_now(answer: httpx.Response) -> bool:
    assert answer.json()["error"]["code"] == "rate_limit_exceeded"
    assert 1 <= int(answer.headers["retry-after"]) <= 61
    return answer.status_code == 429


ONE_AT_A_TIME = "[default]\nrequests_per_minute = 5\nconcurrent_requests = 1"


async def test_the_sixth_request_of_a_minute_is_refused(tmp_path):
    async with limited(tmp_path, ONE_AT_A_TIME) as client:
        answers = [await ask(client) for _ in range(6)]
    assert codes(answers) == [200] * 5 + [429]
    assert refused_for_now(answers[-1])
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["4", "3", "2", "1", "0", "0"]


async def test_a_request_refused_beside_another_costs_nothing(tmp_path):
    async with limited(tmp_path, ONE_AT_A_TIME, make_engine(step_seconds=0.02)) as client:
        running = asyncio.create_task(ask(client, max_tokens=40))
        await until(lambda: allowances_of(client)._held)
        beside = [await ask(client) for _ in range(4)]
        assert not running.done()
        after = [await running] + [await ask(client) for _ in range(5)]
    assert all(refused_for_now(answer) for answer in beside)
    assert codes(after) == [200] * 5 + [429]


async def test_of_twenty_at_one_instant_exactly_the_allowed_number_pass(tmp_path):
    async with limited(tmp_path, "[default]\nrequests_per_minute = 5") as client:
        answers = await asyncio.gather(*(ask(client) for _ in range(20)))
    assert codes(answers) == [200] * 5 + [429] * 15


async def test_what_runs_at_once_is_bounded_and_its_place_is_free_when_it_ended(tmp_path):
    async with limited(tmp_path, "[default]\nconcurrent_requests = 2", make_engine(step_seconds=0.01)) as client:
        for _ in range(3):
            answers = await asyncio.gather(*(ask(client) for _ in range(8)))
            assert codes(answers) == [200] * 2 + [429] * 6
            await until(lambda: not allowances_of(client)._held)


async def test_tokens_are_reserved_before_and_settled_after(tmp_path):
    async with limited(tmp_path, "[default]\ntokens_per_minute = 100", make_engine(step_seconds=0.01)) as client:
        answers = await asyncio.gather(*(ask(client, max_tokens=48) for _ in range(5)))
        assert codes(answers) == [200] + [429] * 4
        (accepted,) = (answer for answer in answers if answer.status_code == 200)
        assert accepted.json()["usage"]["total_tokens"] == 60
        assert (await ask(client, max_tokens=29)).status_code == 429
        last = await ask(client, max_tokens=28)
        assert last.headers["x-ratelimit-remaining-tokens"] == "0"


async def test_what_is_refused_or_never_ran_costs_nothing_and_a_client_that_left_pays_what_it_used(tmp_path):
    limits = "[default]\ntokens_per_minute = 1000\nrequests_per_minute = 3"
    async with limited(tmp_path, limits, make_engine(step_seconds=0.01)) as client:
        for fields in ({"temperature": -1}, {"prompt": "x" * 500}, {"n": 3, "max_tokens": 900}, {"model": "other"}):
            assert (await ask(client, **fields)).status_code in (400, 404)
        standing, periods = await allowances_of(client).standing("acme")
        assert (standing.requests_left, standing.tokens_left, periods) == (3, 1000, {})

        leaving = asyncio.create_task(ask(client, max_tokens=100, stream=True))
        engine = client._transport.app.state.service.engine
        await until(lambda: engine.status().num_generated_tokens > 5)
        leaving.cancel()
        await until(lambda: not allowances_of(client)._held)
        standing, periods = await allowances_of(client).standing("acme")
        num_used = engine.status().num_prompt_tokens + engine.status().num_generated_tokens
    assert standing.requests_left == 2
    assert standing.tokens_left == 1000 - num_used
    assert set(periods.values()) == {num_used}


async def test_what_nothing_is_generated_for_counts_as_a_request_and_by_its_prompt(tmp_path):
    limits = "[default]\nrequests_per_minute = 3\ntokens_per_minute = 100"
    async with limited(tmp_path, limits) as client:
        assert (await ask(client, max_tokens=0, echo=True)).status_code == 200
        assert (await client.post("/tokenize", json={"prompt": PROMPT})).status_code == 200
        assert (await client.post("/detokenize", json={"tokens": [65]})).status_code == 200
        standing, _ = await allowances_of(client).standing("acme")
        assert (standing.requests_left, standing.tokens_left) == (0, 100 - len(PROMPT))
        for path, body in (("/tokenize", {"prompt": PROMPT}), ("/detokenize", {"tokens": [65]})):
            assert (await client.post(path, json=body)).status_code == 429


class FailingRunner(FakeRunner):
    def execute(self, step):
        if self.num_steps == 5:
            raise ZeroDivisionError("the device fell off")
        return super().execute(step)


async def test_what_the_engines_own_failure_took_away_is_free(tmp_path):
    engine = make_engine(runner_class=FailingRunner)
    async with limited(tmp_path, "[default]\ntokens_per_minute = 100", engine) as client:
        assert (await ask(client, max_tokens=20)).status_code == 503
        await until(lambda: not allowances_of(client)._held)
        standing, _ = await allowances_of(client).standing("acme")
    assert standing.tokens_left == 100


async def test_without_max_tokens_a_request_asks_for_no_more_than_the_tenant_is_given(tmp_path):
    async with limited(tmp_path, "[default]\ntokens_per_minute = 50") as client:
        too_much = await ask(client, max_tokens=40)
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
        answer = await client.post("/v1/chat/completions", json=body)
    assert 20 < answer.json()["usage"]["total_tokens"] <= 50
    assert too_much.status_code == 400
    assert too_much.json()["error"]["param"] == "max_tokens"
    assert too_much.headers["x-should-retry"] == "false"


async def flood(client: httpx.AsyncClient, seed: int, tokens: list[int], num_requests: int = 12) -> None:
    """One client: random lengths, some answers left half-way."""
    rng = random.Random(seed)
    for _ in range(num_requests):
        fields = {"prompt": "x" * rng.randint(1, 40), "max_tokens": rng.randint(1, 40), "n": rng.choice((1, 1, 2))}
        asking = ask(client, **fields, stream=bool(rng.randrange(2)))
        try:
            async with asyncio.timeout(rng.choice((0.05, 60))):
                answer = await asking
        except TimeoutError:
            continue
        assert answer.status_code in (200, 429)
        if answer.status_code == 200 and answer.headers["content-type"] == "application/json":
            tokens.append(answer.json()["usage"]["total_tokens"])
        if answer.status_code == 429:
            await asyncio.sleep(rng.random() * 0.01)


async def test_a_hundred_clients_never_get_past_the_tokens_of_a_minute(tmp_path):
    answered: list[int] = []
    engine = make_engine(step_seconds=0.001)
    async with limited(tmp_path, "[default]\ntokens_per_minute = 3000", engine) as client:
        await asyncio.gather(*(flood(client, seed, answered) for seed in range(100)))
        await until(lambda: not allowances_of(client)._held)
        standing, periods = await allowances_of(client).standing("acme")
        num_generated = engine.status().num_generated_tokens
    (num_used,) = set(periods.values())
    assert standing.tokens_left == 3000 - num_used
    assert sum(answered) <= num_used <= 3000
    assert num_generated < num_used
    assert num_used > 3000 - 2 * 120, "it was never near the limit: the test shows nothing"


async def test_two_servers_share_one_allowance_through_redis(tmp_path):
    limits = "[default]\ntokens_per_minute = 2000\ntokens_per_day = 100000"
    with redis_server(tmp_path) as url:
        async with (
            limited(tmp_path, limits, make_engine(step_seconds=0.001), access_store=url) as one,
            limited(tmp_path, limits, make_engine(step_seconds=0.001), access_store=url) as other,
        ):
            answered: list[int] = []
            await asyncio.gather(*(flood(client, seed, answered, 8) for seed in range(25) for client in (one, other)))
            await until(lambda: not (allowances_of(one)._held or allowances_of(other)._held))
            standing, periods = await allowances_of(one).standing("acme")
            other_standing, other_periods = await allowances_of(other).standing("acme")
    assert (standing.tokens_left, periods) == (other_standing.tokens_left, other_periods)
    (num_used,) = set(periods.values())
    assert standing.tokens_left == 2000 - num_used
    assert sum(answered) <= num_used <= 2000
    assert num_used > 2000 - 2 * 120


async def test_while_redis_is_away_nobody_comes_in_and_what_ended_is_settled_when_it_is_back(tmp_path):
    limits = "[default]\ntokens_per_minute = 1000"
    (tmp_path / "first").mkdir()
    async with asyncio.timeout(30):
        with redis_server(tmp_path / "first") as url:
            engine = make_engine(step_seconds=0.01)
            client_of = limited(tmp_path, limits, engine, access_store=url)
            client = await client_of.__aenter__()
            running = asyncio.create_task(ask(client, max_tokens=50))
            await until(lambda: allowances_of(client)._held)
            dump = redis.Redis(unix_socket_path=url.removeprefix("unix://")).get("ullage:books:acme")
        try:
            refused = await ask(client)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "access_store_unavailable")
            assert "retry-after" in refused.headers
            assert (await running).status_code == 200
            await until(lambda: allowances_of(client)._unsettled)
            with redis_server(tmp_path / "first"):
                redis.Redis(unix_socket_path=url.removeprefix("unix://")).set("ullage:books:acme", dump)
                await asyncio.wrap_future(allowances_of(client)._thread.submit(allowances_of(client)._renew))
                standing, _ = await allowances_of(client).standing("acme")
                assert standing.tokens_left == 1000 - 62
                assert (await ask(client)).status_code == 200
        finally:
            await client_of.__aexit__(None, None, None)


async def test_a_quota_that_is_used_up_is_told_as_such_and_survives_the_server(tmp_path):
    limits, store = "[default]\ntokens_per_day = 50", str(tmp_path / "books.db")
    async with limited(tmp_path, limits, access_store=store) as client:
        assert (await ask(client, max_tokens=30)).status_code == 200
    async with limited(tmp_path, limits, access_store=store) as client:
        answer = await ask(client)
    assert answer.status_code == 429
    assert answer.json()["error"]["code"] == answer.json()["error"]["type"] == "insufficient_quota"
    assert answer.headers["x-should-retry"] == "false"


async def test_a_tenant_can_ask_what_it_has_used(tmp_path):
    async with limited(tmp_path, "[default]\ntokens_per_minute = 50\nrequests_per_minute = 9") as client:
        assert (await ask(client, max_tokens=8)).status_code == 200
        await until(lambda: not allowances_of(client)._held)
        used = (await client.get("/v1/usage")).json()
    assert (used["tenant"], used["limits"]["tokens_per_minute"], used["limits"]["weight"]) == ("acme", 50, 1.0)
    assert used["minute"] == {"requests_left": 8, "tokens_left": 30}
    assert set(used["tokens_used"].values()) == {20}


async def test_reloading_takes_new_limits_and_refuses_a_bad_file(tmp_path):
    async with limited(tmp_path, "[default]\nrequests_per_minute = 1") as client:
        assert codes([await ask(client), await ask(client)]) == [200, 429]
        (tmp_path / "limits.toml").write_text("[default]\nrequests_per_minute = 2")
        assert await reload(client) == []
        assert codes([await ask(client), await ask(client)]) == [200, 429]
        for text in ("[default]\nrequests_per_minutes = 9", "[default]\ntokens_per_day = 9"):
            (tmp_path / "limits.toml").write_text(text)
            with pytest.raises(ConfigError):
                await reload(client)
        assert (await ask(client)).status_code == 429


async def test_tenants_have_the_weight_and_class_of_their_section(tmp_path):
    engine = make_engine()
    requests = []
    submit = engine.submit
    engine.submit = lambda request, on_end=None: (requests.append(request), submit(request, on_end))[1]
    async with limited(tmp_path, "[tenants.acme]\nweight = 3\npriority = -2", engine) as client:
        assert (await ask(client)).status_code == 200
    assert [(request.tenant, request.weight, request.priority) for request in requests] == [("acme", 3, -2)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"access_store": "books.db"}, "has nothing to count"),
        ({"limits_file": "quota.toml"}, "need a store"),
        ({"limits_file": "quota.toml", "access_store": "redis://:geheim@localhost/0"}, "holds a password"),
        ({"limits_file": "quota.toml", "access_store": "redis://h/0?password=geheim"}, "holds a password"),
        ({"limits_file": "quota.toml", "access_store": "unix:///nowhere/redis.sock"}, "Redis can't be used"),
        ({"limits_file": "quota.toml", "access_store": "redis://localhost/zero"}, "no address|can't be used"),
        ({"limits_file": "quota.toml", "redis_password_file": "x"}, "is no Redis"),
        (
            {"limits_file": "quota.toml", "access_store": "redis://localhost", "redis_password_file": "none"},
            "can't read the secret",
        ),
    ],
)
def test_settings_that_can_not_be_honoured_are_named(tmp_path, monkeypatch, settings, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quota.toml").write_text("[default]\ntokens_per_day = 9")
    with pytest.raises(ConfigError, match=message) as refused:
        open_allowances(AccessConfig(**settings))
    assert "geheim" not in str(refused.value)


def test_a_password_is_read_from_its_file(tmp_path):
    (tmp_path / "limits.toml").write_text("[default]\ntokens_per_day = 9")
    (tmp_path / "password").write_text("geheim\n")
    with redis_server(tmp_path, "--requirepass", "geheim") as url:
        settings = {"limits_file": str(tmp_path / "limits.toml"), "access_store": url}
        with pytest.raises(ConfigError, match="Redis can't be used"):
            open_allowances(AccessConfig(**settings))
        allowances = open_allowances(AccessConfig(**settings, redis_password_file=str(tmp_path / "password")))
        asyncio.run(allowances.close())
