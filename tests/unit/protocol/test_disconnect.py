from __future__ import annotations

import asyncio

import pytest

from ullage.protocol.disconnect import ClientLeftError, run_unless_client_leaves


class Connection:
    def __init__(self) -> None:
        self.messages: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    async def receive(self) -> dict[str, str]:
        return await self.messages.get()


async def test_work_that_ends_gives_its_result():
    async def work() -> int:
        return 7

    assert await run_unless_client_leaves(Connection().receive, work()) == 7


async def test_work_ends_when_the_client_leaves_and_its_clean_up_may_wait():
    connection, cleaned = Connection(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    connection.messages.put_nowait({"type": "http.request"})
    connection.messages.put_nowait({"type": "http.disconnect"})
    with pytest.raises(ClientLeftError):
        await run_unless_client_leaves(connection.receive, work())
    assert cleaned.is_set()


async def test_an_error_of_the_work_is_raised():
    async def work() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        await run_unless_client_leaves(Connection().receive, work())
