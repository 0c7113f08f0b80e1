"""All choices of one HTTP request: submitted together, read as one stream, aborted together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from operator import itemgetter
from typing import Any

from ullage.base.errors import EngineError
from ullage.engine.client import GenerationOutput, GenerationRequest, OutputStream
from ullage.service.service import Service


class Generation:
    """Outputs of several engine requests, in the order they come. ``close`` must be called, whatever happens."""

    def __init__(self, service: Service, streams: Sequence[OutputStream]) -> None:
        self._service = service
        self._streams = streams
        self._awaited: dict[asyncio.Task[GenerationOutput | None], int] = {}
        """What each unfinished choice will say next, and which choice it is."""

    @classmethod
    async def submit(cls, service: Service, requests: Sequence[GenerationRequest]) -> Generation:
        """All of them or none.

        :raises RequestError, EngineError: the engine refused one; none of the others is left running
        """
        streams: list[OutputStream] = []
        generation = cls(service, streams)
        try:
            for request in requests:
                streams.append(service.engine.submit(request))  # noqa: PERF401 - each must be closable at once
        except BaseException:
            await generation.close()
            raise
        return generation

    async def outputs(self, ping_seconds: float | None = None) -> AsyncGenerator[tuple[int, GenerationOutput] | None]:
        """(choice, output) pairs until every choice has had its last; None whenever nothing came for ``ping_seconds``.

        A choice ends with ``stop`` or ``length`` here.

        :raises EngineError: a choice ended any other way, or the server stops and waits no longer
        """
        for index in range(len(self._streams)):
            self._await_next(index)
        while self._awaited:
            either: list[asyncio.Future[Any]] = [*self._awaited, self._service.cut_off]
            done, _ = await asyncio.wait(either, timeout=ping_seconds, return_when=asyncio.FIRST_COMPLETED)
            if self._service.cut_off.done():
                raise self._service.stopping_error()
            if not done:
                yield None
            ready = [(task, index) for task, index in self._awaited.items() if task in done]
            for task, index in sorted(ready, key=itemgetter(1)):
                del self._awaited[task]
                output = self._checked(task.result())
                if output.finish_reason is None:
                    self._await_next(index)
                yield index, output

    async def close(self) -> None:
        """Aborts what isn't finished. Idempotent."""
        for task in self._awaited:
            task.cancel()
        await asyncio.gather(*self._awaited, return_exceptions=True)
        for stream in self._streams:
            await stream.aclose()

    def _await_next(self, index: int) -> None:
        self._awaited[asyncio.create_task(_next(self._streams[index]))] = index

    def _checked(self, output: GenerationOutput | None) -> GenerationOutput:
        if output is None:
            raise EngineError("a request ended without its final event")
        if output.finish_reason == "error":
            raise output.error or EngineError("the engine failed")
        if output.finish_reason == "abort":
            raise self._service.stopping_error() if self._service.stopping else EngineError("the request was aborted")
        return output


async def _next(stream: OutputStream) -> GenerationOutput | None:
    """None after the last one."""
    return await anext(stream, None)
