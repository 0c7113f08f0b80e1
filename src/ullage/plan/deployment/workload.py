"""The work of a deployment as its users make it: how long prompts and outputs are, and how often requests come.

Lengths are given as percentiles or as a log of requests. Between two percentiles the quantile function is a straight
line; below the lowest it goes down to one token, above the highest it stays. Prompts and outputs given as percentiles
are taken to be independent; those of a log stay together.

From lengths and rate follow, for requests that run side by side:

    requests at once     arrivals a second x seconds in the system (J. D. C. Little, Operations Research 9, 1961)
    tokens of one        its prompt and half its output, on average over its life; long outputs are met more often
    tokens of all        the sum, whose 99th percentile is mean + 2.326 x deviation x sqrt(requests) (central limit)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from ullage.base.errors import ConfigError

NUM_QUANTILES = 64
"""Points that stand for a distribution given by percentiles."""
LIFE_POINTS = 4
"""Moments of a request's life at which its tokens are counted."""
NORMAL_99 = 2.326
LONGEST = 1 << 40
SECONDS = {"s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0}


@dataclass(frozen=True, slots=True)
class RequestLength:
    """Tokens of requests of one kind, and how many of all requests are of it."""

    prompt_tokens: int
    output_tokens: int
    share: float = 1.0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Workload:
    """What users ask of a deployment.

    :ivar lengths: their shares add up to 1
    :ivar arrivals_per_second: None: not said
    :ivar source: where it comes from, in words
    """

    lengths: tuple[RequestLength, ...]
    arrivals_per_second: float | None
    source: str

    def context(self, covered: float) -> int:
        """The smallest context that so large a share of the requests has room in."""
        rest = 1.0
        ordered = sorted(self.lengths, key=lambda length: -length.tokens)
        context = ordered[0].tokens
        for length in ordered:
            context = length.tokens
            rest -= length.share
            if rest < covered - 1e-9:
                break
        return context

    def share_beyond(self, context: int) -> float:
        """Of requests that don't fit into a context and are refused."""
        return min(1.0, sum(length.share for length in self.lengths if length.tokens > context))

    def within(self, context: int) -> tuple[RequestLength, ...]:
        """The requests that are served."""
        return tuple(length for length in self.lengths if length.tokens <= context)

    @property
    def mean_prompt_tokens(self) -> float:
        return sum(length.share * length.prompt_tokens for length in self.lengths)

    @property
    def mean_output_tokens(self) -> float:
        return sum(length.share * length.output_tokens for length in self.lengths)


@dataclass(frozen=True, slots=True)
class RunningDemand:
    """Bytes that one running request takes, at a moment that isn't chosen."""

    mean_bytes: float
    deviation_bytes: float

    def bytes_99(self, requests: int) -> int:
        """What so many take together, 99 times out of 100."""
        return math.ceil(requests * self.mean_bytes + NORMAL_99 * self.deviation_bytes * math.sqrt(requests))


def running_demand(lengths: Iterable[RequestLength], bytes_of: Callable[[int], int]) -> RunningDemand:
    """:param bytes_of: what a request of so many tokens takes

    A request is met in proportion to how long it runs, and it runs a step for each token of output.
    """
    sizes: dict[int, int] = {}
    total = first = second = 0.0
    for length in lengths:
        weight = length.share * length.output_tokens / LIFE_POINTS
        for point in range(LIFE_POINTS):
            made = round((point + 0.5) / LIFE_POINTS * length.output_tokens)
            tokens = rounded_up(length.prompt_tokens + max(1, made))
            if tokens not in sizes:
                sizes[tokens] = bytes_of(tokens)
            size = sizes[tokens]
            total += weight
            first += weight * size
            second += weight * size * size
    mean = first / total
    return RunningDemand(mean, math.sqrt(max(0.0, second / total - mean * mean)))


def rounded_up(tokens: int) -> int:
    """To one of 32 steps between powers of two: few enough lengths that each is worked out once."""
    step = 1 << max(0, tokens.bit_length() - 6)
    return -(-tokens // step) * step


def requests_at_once(arrivals_per_second: float, seconds_in_system: Callable[[int], float], at_most: int) -> int | None:
    """The fewest requests at once that keep up with the arrivals: n >= rate x seconds with n running.

    :param seconds_in_system: of one request, where so many run
    :return: None: not even ``at_most`` keep up
    """
    count = 1
    while (needed := arrivals_per_second * seconds_in_system(count)) > count:
        if needed > at_most:
            return None
        count = max(count + 1, math.ceil(needed))
    return count


def workload_of_percentiles(prompt: str, output: str, arrival_rate: str | None) -> Workload:
    """:raises ConfigError: not percentiles, or not a rate"""
    prompts, outputs = quantiles(prompt, "prompt_lengths"), quantiles(output, "output_lengths")
    share = 1 / (len(prompts) * len(outputs))
    lengths = tuple(RequestLength(p, o, share) for p in prompts for o in outputs)
    return Workload(lengths, rate_of(arrival_rate), f"prompts of {prompt}, outputs of {output}")


def quantiles(text: str, name: str) -> tuple[int, ...]:
    """``p50=500,p90=2000`` or one number, as equally likely lengths.

    :raises ConfigError: not that
    """
    points = [(0.0, 1.0), *_percentiles(text, name)]
    longest = int(points[-1][1])
    if "=" not in text:
        return (longest,)
    return (*(_at((i + 0.5) / NUM_QUANTILES, points) for i in range(NUM_QUANTILES - 1)), longest)


def _percentiles(text: str, name: str) -> Iterator[tuple[float, float]]:
    hint = "write it like p50=500,p90=2000,p99=6000, or as one number"
    before = (0.0, 0.0)
    for part in text.split(","):
        key, equals, value = part.strip().rpartition("=")
        number = value.strip().replace("_", "")
        percent = key.strip().lower().removeprefix("p") if equals else "100"
        if not number.isdecimal() or not 1 <= int(number[:16]) <= LONGEST or len(number) > 16:
            raise ConfigError(f"{name}: {part.strip()!r} is no number of tokens", hint=hint)
        try:
            share = float(percent) / 100
        except ValueError:
            share = math.nan
        if not 0 < share <= 1:
            raise ConfigError(f"{name}: {part.strip()!r} is no percentile", hint=hint)
        point = (share, float(number))
        if point[0] <= before[0] or point[1] < before[1]:
            raise ConfigError(f"{name}: percentiles and lengths must rise, {part.strip()!r} doesn't", hint=hint)
        before = point
        yield point


def _at(share: float, points: list[tuple[float, float]]) -> int:
    for (low, low_value), (high, high_value) in pairwise(points):
        if share <= high:
            return max(1, round(low_value + (share - low) / (high - low) * (high_value - low_value)))
    return int(points[-1][1])


def rate_of(text: str | None) -> float | None:
    """Requests a second, out of ``2/s``, ``90/min`` or a plain number.

    :raises ConfigError: not a rate
    """
    if text is None:
        return None
    number, slash, unit = text.strip().partition("/")
    per = SECONDS.get(unit.strip().lower().removesuffix("s") or "s") if slash else 1.0
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if per is None or not 0 < value < math.inf:
        raise ConfigError(f"arrival_rate: {text!r} is no rate", hint="write it like 2/s, 90/min or 500/h")
    return value / per
