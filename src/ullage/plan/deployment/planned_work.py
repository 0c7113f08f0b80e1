"""What a workload asks of a deployment: a context, how many requests at once, and the bytes that they take together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from ullage.base.errors import ConfigError
from ullage.plan.deployment.cards import Cards
from ullage.plan.deployment.options import PlanOptions
from ullage.plan.deployment.planned_model import PlannedModel
from ullage.plan.deployment.roofline import Roofline, roofline_of
from ullage.plan.deployment.sizing import MANY_REQUESTS, Sizing
from ullage.plan.deployment.workload import (
    RunningDemand,
    Workload,
    requests_at_once,
    running_demand,
    workload_of_percentiles,
)


@dataclass(frozen=True, slots=True)
class PlannedWork:
    """:ivar context: tokens that one request may have

    :ivar refused_share: of requests, which are longer
    :ivar concurrency: requests at once over all copies, by the arrivals where they are known
    :ivar demand: of one of them at a moment of its life
    :ivar needed_bytes: what those of one copy take together, 99 times out of 100, and at least one full request
    :ivar seconds_in_system: of a request on average, by estimate; None: not known
    :ivar reasons: why the arrivals can't be kept up with; empty: they can, or nothing is known of them
    """

    workload: Workload
    context: int
    refused_share: float
    concurrency: int
    demand: RunningDemand
    needed_bytes: int
    seconds_in_system: float | None
    reasons: tuple[str, ...] = ()


def work_of(model: PlannedModel, sizing: Sizing, options: PlanOptions, cards: Cards | None) -> PlannedWork | None:
    """None: the options have no workload.

    :raises ConfigError: percentiles, a rate or a log that can't be used
    """
    workload = _workload(options)
    if workload is None:
        return None
    context = options.max_model_len or workload.context(options.cover or 1.0)
    served = workload.within(context)
    if not served:
        raise ConfigError(f"no request of the workload fits into max_model_len {context}", hint="raise it")
    demand = running_demand(served, lambda tokens: sizing.demand(1, tokens))
    refused = workload.share_beyond(context)
    system = _System(
        sum(length.share * length.prompt_tokens for length in served) / (1 - refused),
        sum(length.share * length.output_tokens for length in served) / (1 - refused),
        demand,
        roofline_of(model, sizing, options, cards),
        options.data_parallel,
    )
    rate = workload.arrivals_per_second
    reasons: tuple[str, ...] = ()
    concurrency = options.concurrency
    if rate is not None:
        rate *= 1 - refused
        if system.roofline is None:
            raise ConfigError("arrivals need a device of known speed", hint="name one of the catalogue with --device")
        running = requests_at_once(
            rate / options.data_parallel, lambda count: system.seconds(count, rate), MANY_REQUESTS
        )
        if running is None:
            reasons = (f"requests arrive faster than they can be answered, by estimate ({rate:.3g} a second)",)
        concurrency = concurrency or (running or 1) * options.data_parallel
    concurrency = concurrency or 1
    per_copy = -(-concurrency // options.data_parallel)
    seconds = None if system.roofline is None or reasons else system.seconds(per_copy, rate or 0.0)
    needed = max(sizing.demand(1, context), demand.bytes_99(per_copy))
    needed = min(needed, sizing.demand(per_copy, context))
    return PlannedWork(workload, context, refused, concurrency, demand, needed, seconds, reasons)


def _workload(options: PlanOptions) -> Workload | None:
    if options.request_log is not None:
        from ullage.plan.deployment.request_log import read_request_log
        from ullage.plan.deployment.workload import rate_of

        return read_request_log(Path(options.request_log), rate_of(options.arrival_rate))
    if options.prompt_lengths is None or options.output_lengths is None:
        return None
    return workload_of_percentiles(options.prompt_lengths, options.output_lengths, options.arrival_rate)


@dataclass(frozen=True, slots=True)
class _System:
    prompt_tokens: float
    """Of the requests that are served, on average; so are the output's."""
    output_tokens: float
    demand: RunningDemand
    roofline: Roofline | None
    copies: int

    def seconds(self, running: int, arrivals_per_second: float) -> float:
        """Of a request in one copy: its prompt and its steps, stretched by the prompts of those that come meanwhile.

        W = prompt + output x step + arrivals x W x prompt, solved for W; infinite where prompts alone fill the time.
        """
        assert self.roofline is not None
        prompt = self.roofline.prompt_seconds(self.prompt_tokens, 1, *self.roofline.likely)
        step = self.roofline.step_seconds(running, running * self.demand.mean_bytes, *self.roofline.likely)
        free = 1 - arrivals_per_second / self.copies * prompt
        return (prompt + self.output_tokens * step) / free if free > 0 else math.inf
