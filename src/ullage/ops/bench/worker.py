"""Our engine in a process of its own, driven as the peers are (``peer_driver.py``).

Requests go through ``EngineClient.submit``, as those of the HTTP service do; text is made of their tokens where the
model has a tokenizer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ullage.base.config import settings_from_arguments
from ullage.base.errors import EngineError
from ullage.engine.build import AssembledEngine, EngineOptions, assemble_engine
from ullage.engine.client import EngineClient, GenerationRequest
from ullage.engine.sampling_params import SamplingParams
from ullage.models.dummy_model import DummyModel
from ullage.models.open_model import open_model
from ullage.ops.bench.peer_driver import Describe, Generate, Prepare, Prompts, answer_lines
from ullage.plan.machine import resident_bytes


async def generate_all(engine: EngineClient, prompts: Prompts, new_tokens: int) -> float | None:
    """Runs all prompts at once, greedily, for whole answers. Returns the seconds from a single sequence's
    first token to its last, by the engine's own clock; None where that can't be told.

    :raises UllageError: a request was refused or failed
    """
    sampling = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)

    async def decode_seconds(prompt: tuple[int, ...]) -> float | None:
        request = GenerationRequest(prompt, sampling, streamed=False)
        outputs = [output async for output in engine.submit(request)]
        last = outputs[-1]
        if last.error is not None:
            raise last.error
        if last.num_output_tokens != new_tokens:
            raise EngineError(f"it generated {last.num_output_tokens} tokens, not {new_tokens}")
        if last.times is None or last.times.first_token_at is None or new_tokens == 1:
            return None
        return last.times.finished_at - last.times.first_token_at

    seconds = await asyncio.gather(*[decode_seconds(tuple(prompt)) for prompt in prompts])
    return seconds[0] if len(prompts) == 1 else None


def load(opening: Mapping[str, Any]) -> tuple[Prepare, Describe]:
    """As ``peer_driver.Load``; ``options`` are the fields of ``EngineOptions``."""
    path = Path(opening["model"])
    model = DummyModel(path) if opening["dummy"] else open_model(path)
    try:
        tokenizer = None if opening["dummy"] else model.tokenizer()
        built = assemble_engine(model, tokenizer, settings_from_arguments(EngineOptions, opening["options"]))
    finally:
        model.close()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(built.engine.start())

    def prepare(prompts: Prompts, new_tokens: int) -> Generate:
        return lambda: loop.run_until_complete(generate_all(built.engine, prompts, new_tokens))

    return prepare, lambda: describe(built)


def describe(built: AssembledEngine) -> dict[str, Any]:
    """What a result file says of our engine."""
    from ullage import __version__

    return {
        "version": __version__,
        "runner": built.runner.name,
        "warning": built.warning,
        "accounts": {
            name: {"planned_bytes": account.planned_bytes, "allocated_bytes": account.allocated_bytes}
            for name, account in built.engine.ledger().accounts.items()
        },
        "resident_bytes": resident_bytes(),
        "capacity_tokens": built.plan.capacity_tokens,
        "block_size": built.plan.block_size,
        "token_bytes": built.plan.token_bytes,
        "stage_seconds": dict(built.runner.stage_seconds()) or None,
    }


if __name__ == "__main__":
    answer_lines(load)
