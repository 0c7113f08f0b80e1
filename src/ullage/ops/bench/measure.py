"""The points of a scenario, measured on one engine after another."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ullage.base.errors import EngineError
from ullage.ops.bench.scenario import Point
from ullage.ops.bench.subject import Launch, Prompts, Subject

SLOW_START_SECONDS = 20.0
"""A start that takes longer is measured once."""
WARM_UP_TOKENS = (16, 3)
"""Prompt and new tokens of a call before each sample: the engines before have left their own data in the caches."""

Progress = Callable[[str], None]


@dataclass(slots=True)
class Measured:
    """What one engine showed at one point."""

    samples: list[float] = field(default_factory=list)
    """In the unit of the point; of ``memory``, resident bytes idle, then under load."""
    details: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    """Why there is nothing, or no more."""

    @property
    def median(self) -> float | None:
        return statistics.median(self.samples) if self.samples and self.error is None else None


class Comparison:
    """Engines that take turns.

    :param launches: by the engine's name, in the order of their turns; a peer whose launch fails is out, with a reason
    :param ours: the engine among them without which there is no result
    :param launch_with_pool: starts ours with a KV pool of so many bytes
    """

    def __init__(
        self,
        launches: Mapping[str, Launch],
        ours: str,
        launch_with_pool: Callable[[int | None], Subject],
        vocab_size: int,
        progress: Progress,
    ) -> None:
        self._launches = launches
        self._ours = ours
        self._launch_with_pool = launch_with_pool
        self._vocab_size = vocab_size
        self._progress = progress
        self._subjects: dict[str, Subject] = {}
        self.failures: dict[str, str] = {}
        """Why an engine is out, by name."""

    def start(self) -> None:
        """:raises EngineError: ours doesn't start"""
        for name, launch in self._launches.items():
            self._progress(f"starting {name}")
            with self._peers_may_fail(name):
                self._subjects[name] = launch()

    def measure(self, point: Point) -> dict[str, Measured]:
        """One sample of each engine in turn, as often as the point says.

        :raises EngineError: ours failed
        """
        measured = {name: Measured() for name in self._launches if point.kind != "memory" or name == self._ours}
        for repeat in range(point.repeats):
            for name in [name for name in measured if name not in self.failures]:
                self._progress(f"{point.name}: {name}, {repeat + 1} of {point.repeats}")
                with self._peers_may_fail(name):
                    self._take_sample(point, repeat, name, measured[name])
        for name in measured.keys() & self.failures.keys():
            measured[name].error = self.failures[name]
        return measured

    def describe(self) -> dict[str, dict[str, Any]]:
        """What each engine that still runs says of itself."""
        descriptions = {}
        for name in [name for name in self._subjects if name not in self.failures]:
            with self._peers_may_fail(name):
                descriptions[name] = self._subjects[name].describe()
        return descriptions

    def close(self) -> None:
        for subject in self._subjects.values():
            subject.close()

    @contextmanager
    def _peers_may_fail(self, name: str) -> Iterator[None]:
        """A peer's failure is a result; it is reported, and its turns are over."""
        try:
            yield
        except EngineError as error:
            if name == self._ours:
                raise
            self.failures[name] = error.message

    def _take_sample(self, point: Point, repeat: int, name: str, measured: Measured) -> None:
        subject, seed = self._subjects[name], f"{point.name} {repeat}"
        if point.kind == "start":
            if repeat == 0:
                measured.samples.append(subject.start_seconds)
            elif subject.start_seconds <= SLOW_START_SECONDS:
                again = self._launches[name]()
                again.close()
                measured.samples.append(again.start_seconds)
        elif point.kind == "memory":
            self._measure_memory(point, seed, measured)
        else:
            prompt_tokens, new_tokens = WARM_UP_TOKENS
            subject.generate(make_prompts(1, prompt_tokens, self._vocab_size, f"warm {seed}"), new_tokens)
            sample = rate(point, subject, self._vocab_size, seed)
            if sample is not None:
                measured.samples.append(sample)
            elif repeat + 1 == point.repeats and not measured.samples:
                measured.error = "many tokens took no longer than one: the machine is too busy to tell"

    def _measure_memory(self, point: Point, seed: str, measured: Measured) -> None:
        subject = self._launch_with_pool(point.kv_memory)
        try:
            idle = subject.describe()
            prompts = make_prompts(point.num_sequences, point.prompt_tokens, self._vocab_size, seed)
            measured.samples += [idle["resident_bytes"], subject.peak_resident_bytes(prompts, point.new_tokens)]
            measured.details = {"accounts": idle["accounts"]}
        finally:
            subject.close()


def rate(point: Point, subject: Subject, vocab_size: int, seed: str) -> float | None:
    """One sample of a point that counts tokens a second; None when noise hid it.

    Decoding of several sequences, or on an engine that doesn't tell when a token came: a run with all tokens less one
    with a single token, on prompts of the same lengths.
    """
    prompts = make_prompts(point.num_sequences, point.prompt_tokens, vocab_size, seed)
    answer = subject.generate(prompts, point.new_tokens)
    if point.kind == "prefill":
        return point.num_sequences * point.prompt_tokens / answer.seconds
    if point.kind == "throughput":
        return point.num_sequences * point.new_tokens / answer.seconds
    seconds = answer.decode_seconds
    if seconds is None:
        others = make_prompts(point.num_sequences, point.prompt_tokens, vocab_size, f"short {seed}")
        seconds = answer.seconds - subject.generate(others, 1).seconds
    return point.num_sequences * (point.new_tokens - 1) / seconds if seconds > 0 else None


def make_prompts(num_sequences: int, prompt_tokens: int, vocab_size: int, seed: str) -> Prompts:
    """Random token ids. No two prompts begin with the same token, and control tokens, which lie at the ends of most
    vocabularies, don't occur.
    """
    draw = random.Random(seed)
    ids = range(vocab_size // 8, vocab_size * 7 // 8)
    firsts = draw.sample(ids, num_sequences)
    return [[first, *draw.choices(ids, k=prompt_tokens - 1)] for first in firsts]
