from __future__ import annotations

import asyncio

import pytest

from ullage.service.request_body import _ends_with


async def test_a_stop_in_the_moment_when_a_body_is_late_anyway_changes_nothing():
    loop = asyncio.get_running_loop()
    errors = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    stop = loop.create_future()

    async def body() -> None:
        async with asyncio.timeout(0) as clock:
            with _ends_with(stop, clock):
                stop.set_result(None)  # told in the same round of the loop, after the clock ran out
                await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await body()
    assert errors == []
