from __future__ import annotations

import asyncio

import pytest

from ullage.base.errors import QueueFullError, ReplicaTimeoutError, ServerStoppingError
from ullage.gateway.in_work import InWork

TOO_LATE = ReplicaTimeoutError("too late")


def test_requests_are_counted_and_bounded():
    in_work = InWork(max_requests=1)
    with in_work.request():
        assert in_work.num_requests == 1
        with pytest.raises(QueueFullError), in_work.request():
            pass
    with in_work.request():
        assert in_work.num_requests == 1
    assert in_work.num_requests == 0


def test_a_gateway_that_stops_takes_none():
    in_work = InWork(max_requests=1)
    in_work.stopping = True
    with pytest.raises(ServerStoppingError), in_work.request():
        pass


async def test_a_wait_ends_when_its_time_is_over():
    with pytest.raises(ReplicaTimeoutError, match="too late"):
        async with InWork(1).within(0.001, TOO_LATE):
            await asyncio.Event().wait()


async def test_cutting_off_ends_waits_now_and_later():
    in_work = InWork(1)

    async def wait() -> None:
        async with in_work.within(60.0, TOO_LATE):
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    in_work.cut_off()
    with pytest.raises(ServerStoppingError):
        await waiting
    with pytest.raises(ServerStoppingError):
        await wait()


async def test_cutting_off_passes_over_a_wait_whose_time_is_just_over():
    in_work = InWork(1)
    late, early = [], []

    async def wait(seconds: float, ended: list[Exception]) -> None:
        try:
            async with in_work.within(seconds, TOO_LATE):
                await asyncio.Event().wait()
        except (ReplicaTimeoutError, ServerStoppingError) as error:
            ended.append(error)

    waiting = [asyncio.create_task(wait(0.0, early)), asyncio.create_task(wait(60.0, late))]
    while not any(clock.expired() for clock in in_work._clocks):  # its task learns of it in the next round
        await asyncio.sleep(0)
    in_work.cut_off()
    await asyncio.gather(*waiting)
    assert [type(error) for error in (*early, *late)] == [ServerStoppingError, ServerStoppingError]
