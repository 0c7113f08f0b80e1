"""All choices of one HTTP request: submitted together, read as one stream, aborted together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial

from ullage.base.errors import EngineError
from ullage.engine.client import GenerationOutput, GenerationRequest, OutputStream
from ullage.engine.output import merge_outputs
from ullage.service.request_record import CURRENT
from ullage.service.service import Service

OnAllEnded = Callable[[Sequence[GenerationOutput]], None]
"""Told the last output of each choice once all have ended, whether or not somebody still reads."""


class Generation:
    """Outputs of several engine requests, in the order they come. ``close`` must be called, whatever happens.

    Each choice has one task that reads it to its end: a token costs two wake-ups, and no task, timer or callback that
    other answers would have to step over.
    """

    def __init__(self, service: Service, num_choices: int, on_all_ended: OnAllEnded | None) -> None:
        self._service = service
        self._num_choices = num_choices
        self._on_all_ended = on_all_ended
        self._record = CURRENT.get()
        self._last: dict[int, GenerationOutput] = {}
        self._streams: list[OutputStream] = []
        self._readers: list[asyncio.Task[None]] = []
        self._pending: dict[int, list[GenerationOutput]] = {}
        """What has come and wasn't given out yet, by choice."""
        self._arrived = asyncio.Event()

    @classmethod
    async def submit(
        cls, service: Service, requests: Sequence[GenerationRequest], on_all_ended: OnAllEnded | None = None
    ) -> Generation:
        """All of them or none.

        :raises RequestError, EngineError: the engine refused one; none of the others is left running
        """
        generation = cls(service, len(requests), on_all_ended)
        try:
            for index, request in enumerate(requests):
                stream = service.engine.submit(request, partial(generation._note_end, index))
                if generation._record is not None:
                    generation._record.accepted(request)
                generation._streams.append(stream)
        except BaseException:
            await generation.close()
            raise
        return generation

    async def outputs(self, ping_seconds: float | None = None) -> AsyncGenerator[tuple[int, GenerationOutput] | None]:
        """(choice, output) pairs until every choice has had its last; None whenever nothing came for ``ping_seconds``.

        A choice ends with ``stop`` or ``length`` here.

        :raises EngineError: a choice ended any other way, or the server stops and waits no longer
        """
        self._readers = [asyncio.create_task(self._read(i, stream)) for i, stream in enumerate(self._streams)]
        for reader in self._readers:
            reader.add_done_callback(self._wake)
        num_unfinished = len(self._streams)
        self._service.cut_off.add_done_callback(self._wake)
        try:
            while num_unfinished:
                something_came = await self._wait(ping_seconds)
                if self._service.cut_off.done():
                    raise self._service.stopping_error()
                for reader in self._readers:
                    if reader.done():
                        reader.result()  # what a stream raises, its reader does
                if not something_came:
                    yield None
                pending, self._pending = self._pending, {}
                for index, outputs in sorted(pending.items()):
                    output = merge_outputs(outputs)
                    output = self._checked(output)
                    if self._record is not None:
                        self._record.add_text(output.text, index)
                    num_unfinished -= output.finish_reason is not None
                    yield index, output
        finally:
            self._service.cut_off.remove_done_callback(self._wake)

    async def close(self) -> None:
        """Aborts what isn't finished. Idempotent."""
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        for stream in self._streams:
            await stream.aclose()

    def _note_end(self, index: int, last: GenerationOutput) -> None:
        self._last[index] = last
        if len(self._last) == self._num_choices and self._on_all_ended is not None:
            self._on_all_ended([self._last[i] for i in range(self._num_choices)])  # first: bills must be settled
        self._service.metrics.observe(last)
        if self._record is not None:
            self._record.ended(last, index)

    async def _read(self, index: int, stream: OutputStream) -> None:
        finished = False
        async for output in stream:
            self._pending.setdefault(index, []).append(output)
            self._arrived.set()
            finished = output.finish_reason is not None
        if not finished:
            error = EngineError("a request ended without its final event")
            self._pending.setdefault(index, []).append(_failed(error))
            self._arrived.set()

    async def _wait(self, at_most_seconds: float | None) -> bool:
        """False: nothing came for so long."""
        try:
            async with asyncio.timeout(at_most_seconds):
                await self._arrived.wait()
        except TimeoutError:
            return False
        self._arrived.clear()
        return True

    def _wake(self, _: object) -> None:
        self._arrived.set()

    def _checked(self, output: GenerationOutput) -> GenerationOutput:
        if output.finish_reason == "error":
            raise output.error or EngineError("the engine failed")
        if output.finish_reason == "abort":
            raise self._service.stopping_error() if self._service.stopping else EngineError("the request was aborted")
        return output


def _failed(error: EngineError) -> GenerationOutput:
    return GenerationOutput("", (), (), 0, 0, 0, finish_reason="error", error=error)
