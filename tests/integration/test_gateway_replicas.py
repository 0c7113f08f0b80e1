"""Replicas that die, hang, fail fast, come back and are replaced (GW-04), under steady load."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from tests.gateway_server import RunningGateway, replica_configs, running_gateway
from tests.http_server import until
from tests.scripted_upstream import Asked, ScriptedUpstream, scripted_upstreams, whole_answer

from ullage.gateway.config import GatewayConfig
from ullage.gateway.gateway import Gateway

NUM_CLIENTS = 6


async def after_a_moment(asked: Asked) -> None:
    await asyncio.sleep(0.005)
    await whole_answer(asked)


async def fails_at_once(asked: Asked) -> None:
    await asked.reply(500, {"error": {"message": "no", "type": "server_error"}})


def three() -> tuple[ScriptedUpstream, ...]:
    return tuple(ScriptedUpstream(after_a_moment) for _ in range(3))


@asynccontextmanager
async def steady_load(gateway: RunningGateway) -> AsyncIterator[Counter[int]]:
    """Clients that ask one request after another; gives the statuses of the answers so far."""
    statuses: Counter[int] = Counter()
    stopping = False

    async def ask() -> None:
        while not stopping:
            statuses[(await gateway.chat()).status_code] += 1

    clients = [asyncio.create_task(ask()) for _ in range(NUM_CLIENTS)]
    try:
        yield statuses
    finally:
        stopping = True
        await asyncio.gather(*clients)


async def answered(statuses: Counter[int], more: int = 60) -> None:
    """Until so many more requests are answered."""
    enough = statuses.total() + more
    await until(lambda: statuses.total() >= enough, seconds=20)


async def lists_its_models(gateway: RunningGateway) -> bool:
    return (await gateway.client.get("/v1/models")).status_code == 200


async def until_state(gateway: RunningGateway, name: str, *states: str) -> None:
    (replica,) = (replica for replica in gateway.gateway.replicas if replica.config.name == name)
    await until(lambda: replica.state in states, seconds=10)


async def test_a_dead_replica_costs_no_request_and_gets_none_until_it_is_back():
    ups = three()
    async with scripted_upstreams(*ups), running_gateway(ups) as gateway, steady_load(gateway) as statuses:
        await answered(statuses)
        assert all(len(upstream.asked) > 10 for upstream in ups)
        await ups[0].kill()
        await until_state(gateway, "a", "down", "ejected")
        await answered(statuses)
        assert await lists_its_models(gateway)
        num_asked = len(ups[0].asked)
        await answered(statuses)
        assert len(ups[0].asked) == num_asked
        await ups[0].start()
        await until(lambda: len(ups[0].asked) > num_asked + 10, seconds=10)
        assert set(statuses) == {200}


async def test_a_frozen_replica_is_found_by_its_silence_and_holds_up_nobody_else():
    ups = three()
    async with (
        scripted_upstreams(*ups),
        running_gateway(ups, answer_timeout_seconds=0.5) as gateway,
        steady_load(gateway) as statuses,
    ):
        await answered(statuses)
        ups[0].frozen = True
        await until_state(gateway, "a", "down", "ejected")
        await answered(statuses)
        assert await lists_its_models(gateway)
        assert statuses[504] <= NUM_CLIENTS  # what it had in work when it froze
        assert set(statuses) <= {200, 504}
        num_asked = len(ups[0].asked)
        await answered(statuses)
        assert len(ups[0].asked) == num_asked


async def test_a_replica_that_fails_fast_is_ejected_and_does_not_look_attractive():
    ups = three()
    settings = {"ejection_seconds": 30.0}
    async with scripted_upstreams(*ups), running_gateway(ups, **settings) as gateway, steady_load(gateway) as statuses:
        await answered(statuses)
        ups[0].script = fails_at_once
        await until_state(gateway, "a", "ejected")
        await answered(statuses, more=100)
        assert statuses[500] <= 3 + NUM_CLIENTS
        assert await gateway.states() == {"a": "ejected", "b": "up", "c": "up"}
        assert await lists_its_models(gateway)


async def test_a_replica_that_answers_only_health_is_ejected_by_its_requests():
    async def silent(asked: Asked) -> None:
        await asked.client_has_left()

    ups = three()
    settings = {"answer_timeout_seconds": 0.2, "ejection_seconds": 30.0}
    async with scripted_upstreams(*ups), running_gateway(ups, **settings) as gateway, steady_load(gateway) as statuses:
        await answered(statuses)
        ups[0].script = silent
        await until_state(gateway, "a", "ejected")
        num_lost = statuses[504]
        await answered(statuses, more=100)
        assert statuses[504] <= num_lost + NUM_CLIENTS
        assert ups[0].num_probes > 1
        assert await lists_its_models(gateway)


async def test_an_ejected_replica_is_tried_with_one_request_and_comes_back_slowly():
    ups = three()
    settings = {"slow_start_seconds": 20.0}
    async with scripted_upstreams(*ups), running_gateway(ups, **settings) as gateway, steady_load(gateway) as statuses:
        ups[0].script = fails_at_once
        await until_state(gateway, "a", "ejected")
        ups[0].script = after_a_moment
        await until_state(gateway, "a", "warming")
        before = [len(upstream.asked) for upstream in ups]
        await answered(statuses, more=200)
        first, *others = [len(upstream.asked) - count for upstream, count in zip(ups, before, strict=True)]
        assert 0 < first < min(others) / 2


async def test_a_replaced_address_gets_no_requests_and_no_probes_and_its_streams_end_well():
    release = asyncio.Event()

    async def long(asked: Asked) -> None:
        await asked.stream(b"data: 1\n\n")
        await release.wait()
        await asked.chunk(b"data: [DONE]\n\n")
        await asked.end()

    old, new = ScriptedUpstream(long), ScriptedUpstream(after_a_moment)
    async with scripted_upstreams(old, new), running_gateway([old]) as gateway:
        streaming = asyncio.create_task(gateway.stream())
        await until(lambda: old.asked)
        gateway.wanted[:] = replica_configs([new])
        await gateway.gateway.reload()
        async with steady_load(gateway) as statuses:
            await until_state(gateway, "a", "up")
            num_probes = old.num_probes
            await answered(statuses)
            await until(lambda: new.num_probes > 5)
        assert (len(old.asked), old.num_probes) == (1, num_probes)
        assert (await gateway.client.get("/gateway/replicas")).json()["replicas"][0]["url"] == new.url
        release.set()
        assert await streaming == "data: 1\n\ndata: [DONE]\n\n"


async def test_a_reload_during_the_start_asks_no_replica_twice():
    async with scripted_upstreams(ScriptedUpstream()) as ups:
        wanted = replica_configs(ups)
        gateway = Gateway(GatewayConfig(health_interval_seconds=60.0), wanted, lambda: wanted)
        await asyncio.gather(gateway.start(), gateway.reload())
        assert ups[0].num_probes == 1
        assert len(gateway.replicas) == 1
        await gateway.stop()


@pytest.mark.parametrize("how", ["killed", "not ready"])
async def test_without_a_replica_the_answer_is_503_at_once(how):
    ups = three()
    async with scripted_upstreams(*ups), running_gateway(ups, max_attempts=5) as gateway:
        for upstream in ups:
            if how == "killed":
                await upstream.kill()
            upstream.ready = False
        if how == "not ready":
            for name in "abc":
                await until_state(gateway, name, "down")
        for response in [await gateway.chat(), await gateway.chat(stream=True), await gateway.client.get("/v1/models")]:
            assert response.status_code == 503
            assert response.headers["retry-after"] == "1"
            assert response.json()["error"]["code"] == "no_replica"
        assert (await gateway.client.get("/health/ready")).status_code == 503
        assert (await gateway.client.get("/health/live")).status_code == 200


async def test_a_replica_that_drains_loses_no_request():
    async def draining(asked: Asked) -> None:
        await asked.reply(503, {"error": {"code": "server_stopping"}}, {"retry-after": "5"})

    ups = three()
    async with scripted_upstreams(*ups), running_gateway(ups) as gateway, steady_load(gateway) as statuses:
        ups[0].script, ups[0].ready = draining, False
        await until_state(gateway, "a", "down")
        await answered(statuses)
        assert set(statuses) == {200}
        assert gateway.outcomes("a").get("failed") is None


async def test_when_all_drain_the_client_gets_the_replicas_own_answer():
    async def draining(asked: Asked) -> None:
        await asked.reply(503, {"error": {"code": "server_stopping"}}, {"retry-after": "7"})

    ups = [ScriptedUpstream(draining), ScriptedUpstream(draining)]
    async with scripted_upstreams(*ups), running_gateway(ups, health_interval_seconds=30.0) as gateway:
        response = await gateway.chat()
        assert (response.status_code, response.headers["retry-after"]) == (503, "7")
        assert sum(len(upstream.asked) for upstream in ups) == 2
        assert (await gateway.chat()).json()["error"]["code"] == "no_replica"


async def test_the_list_of_models_is_that_of_all_replicas_together():
    ups = [ScriptedUpstream(model="big"), ScriptedUpstream(model="small"), ScriptedUpstream(model="small")]
    async with scripted_upstreams(*ups), running_gateway(ups) as gateway:
        models = (await gateway.client.get("/v1/models")).json()
        assert [card["id"] for card in models["data"]] == ["big", "small"]
        await ups[0].kill()
        assert [card["id"] for card in (await gateway.client.get("/v1/models")).json()["data"]] == ["small"]


async def test_a_canary_gets_its_share():
    ups = [ScriptedUpstream(), ScriptedUpstream()]
    async with scripted_upstreams(*ups), running_gateway(ups, weights=[95, 5]) as gateway:

        async def ask() -> httpx.Response:
            return await gateway.chat()

        for _ in range(100):
            await asyncio.gather(*(ask() for _ in range(20)))
        assert abs(len(ups[1].asked) - 100) <= 20
        assert len(ups[0].asked) + len(ups[1].asked) == 2000


async def test_sticky_requests_go_to_one_replica_and_elsewhere_when_it_is_gone():
    ups = three()
    async with scripted_upstreams(*ups), running_gateway(ups, sticky_header="x-session") as gateway:

        async def ask(session: str) -> None:
            response = await gateway.client.post("/v1/completions", json={}, headers={"x-session": session})
            assert response.status_code == 200

        for _ in range(5):
            await ask("one")
        (home,) = (upstream for upstream in ups if upstream.asked)
        assert len(home.asked) == 5
        await home.kill()
        for _ in range(5):
            await ask("one")
        assert sorted(len(upstream.asked) for upstream in ups) == [0, 5, 5]
