"""Work that ends when the client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

Result = TypeVar("Result")


class ClientLeftError(Exception):
    """The client closed the connection. Nobody is left to answer; the outermost door swallows this."""


async def run_unless_client_leaves(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of ``work``, which is cancelled as soon as the client closes the connection.

    Call it after the body is read: it takes over the receiving side. Plain asyncio on purpose: anyio's scopes, which
    Starlette's own streaming uses, would cancel the clean-up's awaits as well.

    :raises ClientLeftError: the client left first
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_client_leaves(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeftError
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _client_leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
