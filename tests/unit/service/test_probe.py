"""Proof of generation, on an engine that says what a test wrote down."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
from tests.scripted_engine import ByteTokenizer, ScriptedEngine, outputs_for

from ullage.engine.client import EngineStatus, GenerationOutput, GenerationRequest
from ullage.service.known_answer import KnownQuestion, PinnedAnswer
from ullage.service.probe import Prober


class AskedEngine(ScriptedEngine):
    """Answers ``text``; what real requests do is ``counts``."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.text = "abcd"
        self.counts: dict[str, int] = {}
        self.counts_after: dict[str, int] | None = None

    def _answer(self, request: GenerationRequest) -> Sequence[GenerationOutput]:
        if self.counts_after is not None:
            self.counts = self.counts_after
        return outputs_for(request, [self.text], "length")

    def status(self) -> EngineStatus:
        return replace(super().status(), **self.counts)


class Fixture:
    def __init__(self, pinned: PinnedAnswer | None = None) -> None:
        self.now = 100.0
        self.engine = AskedEngine()
        question = KnownQuestion.of(ByteTokenizer(), 100, pinned)
        self.prober = Prober(self.engine, question, interval_seconds=10, limit_seconds=0.05, clock=lambda: self.now)

    async def look_after(self, seconds: float) -> None:
        self.now += seconds
        await self.prober.look()

    @property
    def state(self) -> str:
        fault = self.prober.fault_now()
        return "ready" if fault is None else fault.state


def known(digest: str) -> Future[str]:
    future: Future[str] = Future()
    future.set_result(digest)
    return future


@pytest.fixture
def asked() -> Fixture:
    return Fixture()


async def test_it_is_starting_until_the_first_answer(asked: Fixture) -> None:
    assert asked.state == "starting"
    await asked.prober.look()
    assert asked.state == "ready"
    assert asked.prober.seconds_since_proof == 0
    assert all(request.is_probe for request in asked.engine.requests)


async def test_an_idle_engine_is_asked_once_in_each_interval(asked: Fixture) -> None:
    for _ in range(7):
        await asked.look_after(5)
    assert len(asked.engine.requests) == 1 + 4


async def test_a_busy_engine_is_not_asked_its_progress_is_the_proof(asked: Fixture) -> None:
    await asked.prober.look()
    for num_tokens in range(1, 9):
        asked.engine.counts = {"num_open": 1, "num_generated_tokens": num_tokens}
        await asked.look_after(20)
        assert asked.state == "ready"
        assert asked.prober.seconds_since_proof == 0
    asked.engine.counts = {"num_open": 1, "num_generated_tokens": 8}
    await asked.look_after(1000)
    assert asked.state == "ready"
    assert len(asked.engine.requests) == 2


async def test_another_answer_is_a_failure_until_it_is_right_again(asked: Fixture) -> None:
    await asked.prober.look()
    asked.engine.text = "abXd"
    await asked.look_after(11)
    assert asked.state == "failed"
    fault = asked.prober.fault_now()
    assert fault is not None
    assert f"token 3 is {ord('X')}, not {ord('c')}" in fault.reason
    asked.engine.counts = {"num_open": 1, "num_generated_tokens": 50}
    await asked.look_after(1)
    assert asked.state == "failed"  # progress doesn't show that it is right
    asked.engine.counts = {"num_open": 0, "num_generated_tokens": 50}
    asked.engine.text = "abcd"
    await asked.look_after(11)
    assert asked.state == "ready"
    assert asked.prober.num_answers == {"right": 2, "wrong": 1, "late": 0, "unproved": 0}


async def test_an_answer_beside_real_work_proves_nothing_against_the_engine(asked: Fixture) -> None:
    await asked.prober.look()
    asked.engine.text = "abXd"
    asked.engine.counts_after = {"num_open": 3, "num_accepted": 3}
    await asked.look_after(11)
    assert asked.state == "ready"
    assert asked.prober.num_answers["unproved"] == 1


async def test_an_idle_engine_that_does_not_answer_is_stalled_and_the_question_taken_back(asked: Fixture) -> None:
    await asked.prober.look()
    asked.engine.pause_after = 0
    await asked.look_after(11)
    assert asked.state == "stalled"
    assert asked.engine.num_open == 0
    asked.engine.pause_after = None
    await asked.look_after(11)
    assert asked.state == "ready"


async def test_after_a_restart_everything_must_be_shown_again(asked: Fixture) -> None:
    await asked.prober.look()
    asked.engine.counts = {"num_restarts": 1}
    asked.engine.healthy = False
    await asked.look_after(1)
    assert asked.state == "starting"
    asked.engine.healthy = True
    await asked.look_after(1)
    assert asked.state == "ready"


async def test_a_proof_grows_old_when_nobody_looks(asked: Fixture) -> None:
    await asked.prober.look()
    asked.now += 60
    assert asked.state == "stalled"


async def test_the_answer_is_pinned_when_it_is_given_twice_and_holds_for_the_next_start(tmp_path: Path) -> None:
    first = Fixture(PinnedAnswer(tmp_path, known("aa"), "fake"))
    await first.prober.look()
    assert len(first.engine.requests) == 2
    second = Fixture(PinnedAnswer(tmp_path, known("aa"), "fake"))
    second.engine.text = "abcX"
    await second.prober.look()
    assert second.state == "failed"
    fault = second.prober.fault_now()
    assert fault is not None
    assert "when its answer was pinned" in fault.reason


async def test_two_answers_that_differ_are_not_pinned(tmp_path: Path) -> None:
    pinned = PinnedAnswer(tmp_path, known("aa"), "fake")
    asked = Fixture(pinned)
    texts = iter(["abcd", "abcX"])
    asked.engine.script = lambda request: outputs_for(request, [next(texts)], "length")
    await asked.prober.look()
    assert asked.state == "failed"
    assert pinned.read(asked.prober._question.request.prompt_token_ids) is None


async def test_the_first_question_is_asked_before_the_start_is_over(asked: Fixture) -> None:
    await asked.prober.start()
    assert asked.state == "ready"
    await asked.prober.stop()
    await asyncio.sleep(0)
    assert len(asked.engine.requests) == 2


async def start_without_digest(tmp_path: Path, text: str) -> tuple[Fixture, Future[str]]:
    """Started while the weights are still being read; what is pinned for them is "abcd"."""
    digest: Future[str] = Future()
    asked = Fixture(PinnedAnswer(tmp_path, digest, "fake"))
    asked.engine.text = text
    async with asyncio.timeout(5):
        await asked.prober.start()
    await asked.prober.stop()
    return asked, digest


def pin(tmp_path: Path, digest: str) -> None:
    question = KnownQuestion.of(ByteTokenizer(), 100, None).request.prompt_token_ids
    PinnedAnswer(tmp_path, known(digest), "fake").write(question, tuple(b"abcd"))


async def test_weights_that_are_still_being_read_hold_the_start_up_no_longer_but_it_is_not_ready(
    tmp_path: Path,
) -> None:
    pin(tmp_path, "aa")
    asked, digest = await start_without_digest(tmp_path, "abcd")
    for num_tokens in range(1, 5):
        fault = asked.prober.fault_now()
        assert fault is not None
        assert fault.state == "starting"
        assert "weights are still being read" in fault.reason
        asked.engine.counts = {"num_open": 1, "num_generated_tokens": num_tokens}
        await asked.look_after(20)
    digest.set_result("aa")
    await asked.look_after(1)
    assert asked.state == "ready"
    assert asked.prober.num_answers["right"] == len(asked.engine.requests) == 1


async def test_an_answer_that_differs_from_the_pin_is_a_failure_when_the_pin_is_found_late(tmp_path: Path) -> None:
    pin(tmp_path, "aa")
    asked, digest = await start_without_digest(tmp_path, "abcX")
    assert asked.state == "starting"
    digest.set_result("aa")
    asked.engine.counts = {"num_open": 1, "num_generated_tokens": 9}  # busy: the first answer is what is judged
    await asked.look_after(1)
    assert asked.state == "failed"
    assert len(asked.engine.requests) == 1


async def test_weights_without_a_pin_are_learned_as_soon_as_that_is_known(tmp_path: Path) -> None:
    asked, digest = await start_without_digest(tmp_path, "abcd")
    digest.set_result("bb")
    await asked.look_after(1)
    assert asked.state == "ready"
    assert len(asked.engine.requests) == 2
    assert len(list(tmp_path.glob("bb.json"))) == 1


async def test_weights_without_a_pin_are_learned_later_when_requests_run(tmp_path: Path) -> None:
    asked, digest = await start_without_digest(tmp_path, "abcd")
    digest.set_result("bb")
    asked.engine.counts = {"num_open": 1, "num_generated_tokens": 9}
    await asked.look_after(1)
    assert asked.state == "ready"
    assert len(asked.engine.requests) == 1
    asked.engine.counts = {"num_open": 0, "num_generated_tokens": 9}
    await asked.look_after(11)
    assert len(list(tmp_path.glob("bb.json"))) == 1
