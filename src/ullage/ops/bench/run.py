"""A whole run: the scenario on our engine and the peers, the rooflines of the machine, all of it in one result."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ullage.base.errors import ConfigError, EngineError
from ullage.engine.build import EngineOptions
from ullage.models.dummy_model import DummyModel
from ullage.models.model_file import ModelFile
from ullage.models.open_model import open_model
from ullage.models.spec import ModelSpec
from ullage.ops.bench.machine import describe_commit, describe_machine, describe_versions
from ullage.ops.bench.measure import Comparison, Measured, Progress, make_prompts
from ullage.ops.bench.peers import PeerInput, find_peers
from ullage.ops.bench.roofline import Machine, ModelCosts, costs_of, limit_of
from ullage.ops.bench.rooflines import ReadProbe, machine_of, measure_peaks
from ullage.ops.bench.scenario import Point, Scenario
from ullage.ops.bench.subject import ProcessSubject, Subject
from ullage.plan.machine import num_cores

OURS = "Ullage"
RESULT_FORMAT = 1
PATHS = re.compile(r"(?:/[^\s/:'\"]+)+/")


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What is to be run."""

    model: Path
    """What ``open_model`` opens, or the ``config.json`` of a dummy."""
    is_dummy: bool
    scenario: Scenario
    options: EngineOptions
    command: str
    """As typed, paths left out."""
    peers: Path | None
    peer_hf: Path | None


def run_bench(request: BenchRequest, progress: Progress) -> dict[str, Any]:
    """Runs everything; returns what is written to the result file.

    :raises ConfigError: the settings don't let a point run
    :raises UllageError: our engine can't run the model
    """
    check_options(request)
    model: ModelFile = DummyModel(request.model) if request.is_dummy else open_model(request.model)
    spec = model.spec
    model.close()
    first_prompt = make_prompts(1, 1, spec.vocab_size, "first")[0]
    with tempfile.TemporaryDirectory(prefix="ullage-bench-") as scratch:
        launches = {OURS: lambda: launch_ours(request, first_prompt)}
        if request.peers is not None:
            launches |= find_peers(request.peers, _peer_input(request, Path(scratch), first_prompt))
        comparison = Comparison(
            launches,
            OURS,
            lambda kv_memory: launch_ours(request, first_prompt, kv_memory),
            spec.vocab_size,
            progress,
        )
        try:
            return _measure(request, spec, comparison, progress)
        finally:
            comparison.close()


def check_options(request: BenchRequest) -> None:
    """:raises ConfigError: a point that these settings don't let run as it says"""
    options = request.options
    for point in request.scenario.points:
        if point.num_sequences > options.max_num_seqs:
            raise ConfigError(
                f"{point.name} runs {point.num_sequences} sequences at once, max_num_seqs is {options.max_num_seqs}",
                hint=f"use --max-num-seqs {point.num_sequences}",
            )
        if options.max_model_len is not None and point.request_tokens > options.max_model_len:
            raise ConfigError(
                f"{point.name} has sequences of {point.request_tokens} tokens, max_model_len is "
                f"{options.max_model_len}",
                hint=f"use --max-model-len {point.request_tokens}",
            )


def check_pool(points: tuple[Point, ...], description: Mapping[str, Any]) -> None:
    """:raises ConfigError: a pool in which the sequences of a point don't fit all at once"""
    block_size = description["block_size"]
    for point in points:
        needed = point.num_sequences * -(-point.request_tokens // block_size) * block_size
        if point.kind != "memory" and needed > description["capacity_tokens"]:
            raise ConfigError(
                f"{point.name} needs a KV pool of {needed} tokens, it holds {description['capacity_tokens']}",
                hint=f"use --kv-memory {needed * description['token_bytes']}",
            )


def launch_ours(request: BenchRequest, first_prompt: object, kv_memory: int | None = None) -> Subject:
    options = request.options if kv_memory is None else replace(request.options, kv_memory=kv_memory)
    opening = {
        "model": str(request.model),
        "dummy": request.is_dummy,
        "options": asdict(options),
        "first_prompt": first_prompt,
    }
    return ProcessSubject(OURS, [sys.executable, "-m", "ullage.ops.bench.worker"], opening)


def _peer_input(request: BenchRequest, scratch: Path, first_prompt: object) -> PeerInput:
    points = [point for point in request.scenario.points if point.kind != "memory"]
    opening = {
        "first_prompt": first_prompt,
        "threads": request.options.threads or num_cores(),
        "kv_bytes": 2 << 30,
        "max_num_seqs": max(point.num_sequences for point in points),
        "max_model_len": max(64, *(point.request_tokens for point in points)),
    }
    return PeerInput(request.model, request.is_dummy, request.peer_hf, scratch, opening)


def _measure(request: BenchRequest, spec: ModelSpec, comparison: Comparison, progress: Progress) -> dict[str, Any]:
    threads = request.options.threads or num_cores()
    began = datetime.now(UTC)
    comparison.start()
    ours = comparison.describe()[OURS]
    check_pool(request.scenario.points, ours)
    costs = costs_of(spec, ours["accounts"]["weights"]["allocated_bytes"], ours["token_bytes"])
    probe = ReadProbe(costs.weight_bytes, threads)
    peaks = measure_peaks(threads)
    measured = {}
    for point in request.scenario.points:
        progress("reading memory, to know how fast that is")
        probe.sample()
        measured[point.name] = comparison.measure(point)
    probe.sample()
    machine = machine_of(probe.bytes_per_second, peaks)
    descriptions = comparison.describe()
    return {
        "format": RESULT_FORMAT,
        "kind": "engine",
        "scenario": request.scenario.name,
        "date": began.strftime("%Y-%m-%d %H:%M UTC"),
        "command": request.command,
        **describe_commit(),
        "versions": describe_versions(),
        "machine": describe_machine(),
        "model": _describe_model(request, spec, costs),
        "settings": asdict(request.options) | {"threads": threads},
        "runner": descriptions[OURS]["runner"],
        "warning": descriptions[OURS]["warning"],
        "memory": {"accounts": ours["accounts"], "resident_bytes": ours["resident_bytes"]}
        | {"resident_bytes_after_load": descriptions[OURS]["resident_bytes"]},
        "stage_seconds": descriptions[OURS]["stage_seconds"],
        "rooflines": {
            "read": probe.describe(),
            "peak_operations_per_second": peaks,
            "used": asdict(machine),
        },
        "peers": {name: description["version"] for name, description in descriptions.items() if name != OURS},
        "failures": {name: PATHS.sub("", reason) for name, reason in comparison.failures.items()},
        "points": [
            describe_point(point, measured[point.name], costs, machine, request.options.max_num_batched_tokens)
            for point in request.scenario.points
        ],
    }


def _describe_model(request: BenchRequest, spec: ModelSpec, costs: ModelCosts) -> dict[str, Any]:
    return {
        "name": spec.name if request.is_dummy else request.model.name,
        "random_weights": request.is_dummy,
        "architecture": spec.architecture,
        "parameters": costs.layer_parameters + costs.head_parameters,
        "weight_bytes": costs.weight_bytes,
        "kv_bytes_per_token": round(costs.token_bytes * spec.num_layers),
    }


def describe_point(
    point: Point, measured: Mapping[str, Measured], costs: ModelCosts, machine: Machine, chunk_tokens: int
) -> dict[str, Any]:
    """A point as it stands in a result file."""
    limit = limit_of(point, costs, machine, chunk_tokens)
    ours = measured[OURS].median
    if ours is None:
        raise EngineError(f"{point.name}: nothing was measured")
    return {
        **asdict(point),
        "unit": point.unit,
        "roofline": None if limit is None else {"limit": limit[0], "bound": limit[1], "share": ours / limit[0]},
        "results": {
            name: {
                "median": result.median,
                "samples": result.samples,
                **result.details,
                "error": None if result.error is None else PATHS.sub("", result.error),
            }
            for name, result in measured.items()
        },
    }
