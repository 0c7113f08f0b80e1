"""Random load for a long time: does memory grow, does a step get slower?

Clients send requests of random lengths, sampled in random ways, and leave some of them halfway. Each round the load
stops, and when nothing runs any more one fixed request is timed, and resident memory is read.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ullage.base.errors import EngineError
from ullage.engine.client import EngineClient, GenerationRequest
from ullage.engine.sampling_params import SamplingParams
from ullage.plan.machine import resident_bytes

PROBE_PROMPT_TOKENS, PROBE_NEW_TOKENS, PROBE_REPEATS = 128, 64, 5
LONGEST_PROMPT, MOST_NEW_TOKENS = 1500, 200
SHARE_LEFT = 0.2  # of requests whose reader leaves
SHARE_CONTINUED = 0.3  # of prompts that begin like others, for the prefix cache


@dataclass(frozen=True, slots=True)
class SoakSample:
    """What a round showed when its load had ended."""

    seconds: float
    """Since the beginning."""
    resident_bytes: int
    probe_tokens_per_second: float
    """Of one request alone, its prompt included; a median."""
    num_requests: int
    """Since the beginning, those left included."""
    num_tokens: int


class Soak:
    """Loads an engine that is up.

    :param num_clients: requests at once
    :param round_seconds: of load before each sample
    """

    def __init__(
        self,
        engine: EngineClient,
        vocab_size: int,
        *,
        num_clients: int = 16,
        round_seconds: float = 60.0,
        seed: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine = engine
        self._vocab_size = vocab_size
        self._num_clients = num_clients
        self._round_seconds = round_seconds
        self._random = random.Random(seed)
        self._clock = clock
        self._num_requests = self._num_tokens = 0

    async def run(self, num_rounds: int, tell: Callable[[SoakSample], None]) -> list[SoakSample]:
        """:raises EngineError: a request failed, or memory of the KV pool stayed reserved when nothing ran"""
        began = self._clock()
        samples: list[SoakSample] = []
        for _ in range(num_rounds):
            until = self._clock() + self._round_seconds
            await asyncio.gather(*[self._client(until) for _ in range(self._num_clients)])
            await self._check_idle()
            speed = statistics.median([await self._probe() for _ in range(PROBE_REPEATS)])
            elapsed = self._clock() - began
            samples.append(SoakSample(elapsed, resident_bytes(), speed, self._num_requests, self._num_tokens))
            tell(samples[-1])
        return samples

    async def _client(self, until: float) -> None:
        while self._clock() < until:
            request = self._random_request()
            leaves_after = self._random.randrange(1, MOST_NEW_TOKENS) if self._random.random() < SHARE_LEFT else None
            await self._generate(request, leaves_after)

    async def _generate(self, request: GenerationRequest, leaves_after: int | None = None) -> None:
        self._num_requests += 1
        num_tokens = 0
        stream = self._engine.submit(request)
        async for output in stream:
            if output.error is not None:
                raise output.error
            num_tokens += len(output.token_ids)
            if leaves_after is not None and num_tokens >= leaves_after:
                await stream.aclose()
                break
        self._num_tokens += num_tokens

    def _random_request(self) -> GenerationRequest:
        draw = self._random
        length = round(LONGEST_PROMPT ** draw.random())
        first = 0 if draw.random() < SHARE_CONTINUED else draw.randrange(self._vocab_size)
        prompt = tuple((first + 7 * i) % self._vocab_size for i in range(length))
        ways: list[dict[str, Any]] = [
            {"temperature": 0.0},
            {"temperature": 1.0, "top_p": 0.95},
            {"temperature": 0.8, "top_k": 40, "logprobs": 5},
            {"temperature": 1.2, "repetition_penalty": 1.1, "presence_penalty": 0.5},
        ]
        sampling = SamplingParams(
            max_tokens=draw.randrange(1, MOST_NEW_TOKENS),
            ignore_eos=True,
            seed=draw.randrange(2**32),
            **draw.choice(ways),
        )
        return GenerationRequest(prompt, sampling)

    async def _check_idle(self) -> None:
        for _ in range(200):  # those left take a step to end
            if self._engine.ledger().kv_reserved_bytes == 0:
                return
            await asyncio.sleep(0.05)
        reserved = self._engine.ledger().kv_reserved_bytes
        raise EngineError(f"{reserved} bytes of the KV pool are reserved, though no request runs")

    async def _probe(self) -> float:
        prompt = tuple(3 * i % self._vocab_size for i in range(PROBE_PROMPT_TOKENS))
        sampling = SamplingParams(temperature=0.0, max_tokens=PROBE_NEW_TOKENS, ignore_eos=True)
        began = self._clock()
        async for output in self._engine.submit(GenerationRequest(prompt, sampling)):
            if output.error is not None:
                raise output.error
        return PROBE_NEW_TOKENS / (self._clock() - began)


def summary(samples: list[SoakSample]) -> Mapping[str, Any]:
    """First and last third against each other. The first round, which warms everything, doesn't count."""
    counted = samples[1:] if len(samples) > 3 else samples
    third = max(1, len(counted) // 3)
    first, last = counted[:third], counted[-third:]

    def change(values: Callable[[SoakSample], float]) -> float:
        return statistics.median(map(values, last)) / statistics.median(map(values, first)) - 1

    return {
        "memory_change": change(lambda sample: sample.resident_bytes),
        "speed_change": change(lambda sample: sample.probe_tokens_per_second),
        "num_requests": samples[-1].num_requests,
        "num_tokens": samples[-1].num_tokens,
        "samples": [asdict(sample) for sample in samples],
    }
