"""Requests to an engine, and what comes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ullage.engine.client import GenerationOutput, GenerationRequest, OutputStream
from ullage.engine.sampling_params import SamplingParams


def request(prompt: list[int], max_tokens: int = 10, **sampling: object) -> GenerationRequest:
    return GenerationRequest(tuple(prompt), SamplingParams(max_tokens=max_tokens, **sampling))


async def collect(stream: OutputStream) -> list[GenerationOutput]:
    return [output async for output in stream]


def tokens_of(outputs: list[GenerationOutput]) -> list[int]:
    return [token_id for output in outputs for token_id in output.token_ids]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)
