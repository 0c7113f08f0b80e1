"""Random load against an engine without a model, under a clock that goes by requests."""

from __future__ import annotations

import itertools

import pytest
from tests.fake_engine import VOCAB_SIZE, make_core

from ullage.base.errors import EngineError
from ullage.engine.embedded import EmbeddedEngine
from ullage.ops.bench.soak import Soak, SoakSample, summary


def fake_engine() -> EmbeddedEngine:
    core = make_core(num_blocks=200, block_size=32, max_model_len=2000, max_num_batched_tokens=2000)
    return EmbeddedEngine(core, None)


def samples_of(memory: list[int], speed: list[float]) -> list[SoakSample]:
    return [SoakSample(60.0 * i, m, s, 10 * i, 100 * i) for i, (m, s) in enumerate(zip(memory, speed, strict=True))]


def test_the_first_round_warms_up_and_thirds_are_compared():
    figures = summary(samples_of([50, 100, 100, 101, 102, 110, 110], [1.0, 20.0, 20.0, 20.0, 20.0, 10.0, 10.0]))
    assert figures["memory_change"] == pytest.approx(0.1)
    assert figures["speed_change"] == pytest.approx(-0.5)
    assert figures["num_requests"] == 60
    assert len(figures["samples"]) == 7


async def test_every_round_loads_waits_until_nothing_runs_and_gives_a_sample():
    engine = fake_engine()
    await engine.start()
    ticks = itertools.count()
    told: list[SoakSample] = []
    try:
        soak = Soak(engine, VOCAB_SIZE, num_clients=3, round_seconds=40.0, clock=lambda: float(next(ticks)))
        samples = await soak.run(2, told.append)
        assert engine.ledger().kv_reserved_bytes == 0
    finally:
        await engine.stop()
    assert samples == told
    assert samples[0].num_requests < samples[1].num_requests
    assert all(sample.probe_tokens_per_second > 0 and sample.resident_bytes > 0 for sample in samples)


async def test_memory_of_the_pool_that_stays_reserved_ends_the_run(monkeypatch):
    engine = fake_engine()
    await engine.start()
    try:
        soak = Soak(engine, VOCAB_SIZE, num_clients=1, round_seconds=0.0)
        taken = type("Snapshot", (), {"kv_reserved_bytes": 5})
        monkeypatch.setattr(engine, "ledger", lambda: taken)
        monkeypatch.setattr("ullage.ops.bench.soak.asyncio.sleep", no_wait)
        with pytest.raises(EngineError, match="5 bytes of the KV pool are reserved"):
            await soak.run(1, print)
    finally:
        await engine.stop()


async def no_wait(seconds: float) -> None:
    return None
