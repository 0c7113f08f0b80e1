"""Our engine's side, with an engine whose tokens come at known times."""

from __future__ import annotations

import pytest
from tests.model_fixtures import tiny_model, write_gguf

from ullage.base.errors import EngineError
from ullage.engine.build import EngineOptions, assemble_engine
from ullage.engine.client import GenerationOutput, RequestTimes
from ullage.models.open_model import open_model
from ullage.ops.bench.worker import describe, generate_all


class KnownEngine:
    """The first token of a request comes after 3 seconds, the others each after a quarter of one."""

    def __init__(self, num_missing: int = 0) -> None:
        self.requests = []
        self._num_missing = num_missing

    async def submit(self, request):
        self.requests.append(request)
        count = request.sampling.max_tokens - self._num_missing
        times = RequestTimes(100.0, 101.0, 103.0, 103.0 + 0.25 * (count - 1))
        yield GenerationOutput(
            "",
            (1,) * count,
            (),
            len(request.prompt_token_ids),
            num_cached_tokens=0,
            num_output_tokens=count,
            times=times,
        )


async def test_decoding_lasts_from_the_first_token_to_the_last():
    engine = KnownEngine()
    assert await generate_all(engine, [[1, 2, 3]], 5) == pytest.approx(1.0)
    (request,) = engine.requests
    assert request.prompt_token_ids == (1, 2, 3)
    assert (request.sampling.temperature, request.sampling.ignore_eos, request.streamed) == (0, True, False)


async def test_of_a_single_token_no_time_is_told():
    assert await generate_all(KnownEngine(), [[1]], 1) is None


async def test_an_output_of_another_length_is_no_measurement():
    with pytest.raises(EngineError, match="1 tokens, not 5"):
        await generate_all(KnownEngine(num_missing=4), [[1]], 5)


async def test_of_several_sequences_no_time_is_told():
    engine = KnownEngine()
    assert await generate_all(engine, [[1], [2]], 5) is None
    assert len(engine.requests) == 2


async def test_an_error_in_a_stream_is_raised():
    class Failing:
        async def submit(self, request):
            error = EngineError("out of luck")
            yield GenerationOutput(
                "", (), (), 1, num_cached_tokens=0, num_output_tokens=0, finish_reason="error", error=error
            )

    with pytest.raises(EngineError, match="out of luck"):
        await generate_all(Failing(), [[1]], 5)


async def test_a_real_engine_runs_and_describes_itself(tmp_path):
    model = open_model(write_gguf(tmp_path / "tiny.gguf", tiny_model("llama")))
    built = assemble_engine(model, None, EngineOptions(runner="numpy", kv_memory=1 << 20))
    model.close()
    await built.engine.start()
    assert await generate_all(built.engine, [[1, 2, 3], [4, 5, 6]], 4) is None
    described = describe(built)
    await built.engine.stop()
    accounts = described["accounts"]
    assert accounts["weights"]["planned_bytes"] == accounts["weights"]["allocated_bytes"] > 0
    assert described["runner"] == "numpy (reference)"
    assert described["stage_seconds"] is None
    assert described["capacity_tokens"] * described["token_bytes"] <= 1 << 20
