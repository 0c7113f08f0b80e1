"""Recent proof that the engine generates what it should: of an idle one, the answer to a question with a known answer;
of a busy one, the progress of real requests.

The question is asked in the engine like any other request, so that all that a request needs is proved with it. An
answer counts only when nothing ran beside it: a busy engine proves itself, and is never called slow for being busy.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from ullage.base.errors import UllageError
from ullage.engine.client import EngineClient, EngineStatus
from ullage.service.known_answer import KnownQuestion, TokenIds

LOOK_SECONDS = 0.5
"""How often the engine's counts are looked at."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fault:
    """Why there is no proof."""

    state: Literal["starting", "stalled", "failed"]
    reason: str


NOTHING_YET = Fault("starting", "the engine hasn't yet answered the question that shows that it works")
PIN_NOT_READ = Fault("starting", "the weights are still being read, to find the answer that is pinned for them")


class Prober:
    """Belongs to the event loop.

    :param interval_seconds: between two questions to an idle engine
    :param limit_seconds: for an answer
    """

    def __init__(
        self,
        engine: EngineClient,
        question: KnownQuestion,
        *,
        interval_seconds: float,
        limit_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.fault: Fault | None = NOTHING_YET
        self.num_answers = {"right": 0, "wrong": 0, "late": 0, "unproved": 0}
        """Of the questions that were asked. ``unproved``: something ran beside it, or the engine ended."""
        self._engine = engine
        self._question = question
        self._interval_seconds = interval_seconds
        self._limit_seconds = limit_seconds
        self._oldest_seconds = interval_seconds + 2 * limit_seconds + 2 * LOOK_SECONDS
        self._clock = clock
        self._proved_at: float | None = None
        self._asked_at: float | None = None
        self._expected: TokenIds | None = None
        self._said: TokenIds | None = None
        """Its last answer, while nothing is expected yet."""
        self._source = "before"
        self._pin_was_read = question.pinned is None
        self._seen = _seen_in(engine.status())
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when the first question was answered, or wasn't in time. To find the pinned answer all weights must
        be read, which may take a minute: that isn't waited for."""
        await self.look()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def seconds_since_proof(self) -> float | None:
        return None if self._proved_at is None else self._clock() - self._proved_at

    def fault_now(self) -> Fault | None:
        """Why the engine can't be relied on; None: it can."""
        seconds = self.seconds_since_proof
        if (
            self.fault is None
            and seconds is not None
            and seconds > self._oldest_seconds
            and not self._engine.status().num_open
        ):
            return Fault("stalled", f"the last proof of generation is {seconds:.0f} s old")
        if self.fault is None and not self._pin_was_read:
            return PIN_NOT_READ
        return self.fault

    async def look(self) -> None:
        """Notes what real requests prove, and asks when it is time to."""
        await self._read_pin()
        status = self._engine.status()
        seen, self._seen = self._seen, _seen_in(status)
        if self._seen.num_restarts != seen.num_restarts:
            self._proved_at = self._asked_at = None
            self.fault = NOTHING_YET
        elif self._seen != seen:
            self._prove()
        if status.healthy and status.num_open == 0 and self._is_due():
            await self._ask()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    def _is_due(self) -> bool:
        times = [at for at in (self._proved_at, self._asked_at) if at is not None]
        return not times or self._clock() - max(times) >= self._interval_seconds

    def _prove(self) -> None:
        """A wrong answer is taken back only by a right one."""
        self._proved_at = self._clock()
        if self.fault is None or self.fault.state != "failed":
            self.fault = None

    async def _ask(self) -> None:
        num_accepted = self._engine.status().num_accepted
        self._asked_at = self._clock()
        answer: TokenIds | None = None
        late = False
        try:
            async with asyncio.timeout(self._limit_seconds):
                answer = await self._answer()
        except TimeoutError:
            late = True
        except UllageError as error:
            logger.info("the engine took no question: %s", error)
        alone = self._engine.status().num_accepted == num_accepted
        if not alone or (answer is None and not late):
            self.num_answers["unproved"] += 1
        elif late:
            self.num_answers["late"] += 1
            self._find(Fault("stalled", f"a short question wasn't answered within {self._limit_seconds:g} s"))
        else:
            assert answer is not None
            await self._judge(answer)

    async def _answer(self) -> TokenIds | None:
        """None: the engine ended."""
        async with aclosing(self._engine.submit(self._question.request)) as outputs:
            async for output in outputs:
                if output.finish_reason in ("stop", "length"):
                    return output.token_ids
        return None

    async def _read_pin(self) -> None:
        """Once it can be had; what the engine said before is judged by it."""
        pinned = self._question.pinned
        if self._pin_was_read or pinned is None or not pinned.can_be_read:
            return
        self._expected = await asyncio.to_thread(pinned.read, self._question.request.prompt_token_ids)
        self._pin_was_read = True
        if self._expected is not None:
            self._source = "when its answer was pinned"
            if self._said is not None:
                await self._judge(self._said)
        elif self._said is not None and self._engine.status().num_open == 0:
            await self._ask()

    async def _judge(self, answer: TokenIds) -> None:
        if not self._pin_was_read:
            self._said = answer
            self._prove()
            return
        if self._expected is None and not await self._learn(answer):
            return
        assert self._expected is not None
        if answer != self._expected:
            self.num_answers["wrong"] += 1
            self._find(Fault("failed", self._difference(answer)))
            return
        self.num_answers["right"] += 1
        if self.fault is not None and self.fault.state == "failed":
            logger.warning("the engine's answer is right again")
        self.fault = None
        self._prove()

    async def _learn(self, answer: TokenIds) -> bool:
        """From the engine itself, which must say it twice, and then pinned. True: it is known."""
        before, self._said = self._said, answer
        if before is None:
            await self._ask()
            return False
        if before != answer:
            self.num_answers["wrong"] += 1
            self._find(Fault("failed", "the engine answers the same greedy question differently each time"))
            return False
        self._expected = answer
        if self._question.pinned is not None:
            await asyncio.to_thread(self._question.pinned.write, self._question.request.prompt_token_ids, answer)
        return True

    def _difference(self, answer: TokenIds) -> str:
        assert self._expected is not None
        pairs = zip(answer, self._expected, strict=False)
        place = next((i for i, (said, right) in enumerate(pairs) if said != right), None)
        if place is None:
            return f"the engine answers {len(answer)} tokens, not the {len(self._expected)} that it did {self._source}"
        return (
            f"the engine computes something else than {self._source}: to the question with the known answer, "
            f"token {place + 1} is {answer[place]}, not {self._expected[place]}"
        )

    def _find(self, fault: Fault) -> None:
        if fault != self.fault:
            logger.error("not ready: %s", fault.reason)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Seen:
    """Changes whenever the engine does something for a real request; questions aren't counted in it."""

    num_restarts: int
    num_prompt_tokens: int
    num_generated_tokens: int


def _seen_in(status: EngineStatus) -> Seen:
    return Seen(status.num_restarts, status.num_prompt_tokens, status.num_generated_tokens)
