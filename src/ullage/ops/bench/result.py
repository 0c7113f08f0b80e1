"""Result files: one JSON object for each run, written once and read by tables, plots and the report."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ullage.base.errors import ConfigError
from ullage.ops.bench.run import OURS, RESULT_FORMAT

Result = Mapping[str, Any]

HEADLINES = ("start_s", "decode1_tok_s", "decode32_tok_s", "decode64_tok_s", "prefill_tok_s")


def write_result(result: Result, folder: Path) -> Path:
    """:raises ConfigError: the folder can't be written to"""
    parts = (result["date"][:10], result["model"]["name"].removesuffix(".gguf"), result["settings"]["weight_type"])
    name = "-".join((*parts, result["scenario"]))
    path = folder / f"{re.sub(r'[^A-Za-z0-9._-]', '-', name).lower()}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rounded(result), indent=1) + "\n", "utf-8")
    except OSError as error:
        raise ConfigError(f"can't write {path}: {error.strerror}", hint="choose another --output") from error
    return path


def rounded(value: Any) -> Any:
    """Floats to six digits: nothing was measured better."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: rounded(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(entry) for entry in value]
    return value


def read_results(folder: Path, kind: str) -> dict[str, Result]:
    """All results of a kind in a folder, by file name without ending, oldest first.

    :raises ConfigError: a file that isn't a result, or one of another format
    """
    results = {}
    for path in sorted(folder.glob("*.json")):
        try:
            result = json.loads(path.read_text("utf-8"))
            is_of_kind = result["kind"] == kind
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path.name} is not a result file") from error
        if is_of_kind:
            if result["format"] != RESULT_FORMAT:
                raise ConfigError(f"{path.name} has format {result['format']}, this version reads {RESULT_FORMAT}")
            results[path.stem] = result
    return results


def points_of(result: Result, workload: str) -> list[Result]:
    """The points of a series, in order."""
    return [point for point in result["points"] if point["workload"] == workload]


def best_peer(point: Result) -> tuple[str, float] | None:
    """Name and median of the best peer at a point; None when no peer has a figure."""
    medians = {
        name: measured["median"]
        for name, measured in point["results"].items()
        if name != OURS and measured["median"] is not None
    }
    if not medians:
        return None
    name = (min if point["unit"] == "s" else max)(medians, key=lambda peer: medians[peer])
    return name, medians[name]


def ratio_to_best_peer(point: Result) -> float | None:
    """How many times as fast as the best peer ours is."""
    best = best_peer(point)
    if best is None:
        return None
    ours: float = point["results"][OURS]["median"]
    return best[1] / ours if point["unit"] == "s" else ours / best[1]


def summary(result: Result) -> dict[str, Any]:
    """The headline figures by name, then what they are to be compared with."""
    points = [point for point in result["points"] if point["kind"] != "memory"]
    figures: dict[str, Any] = {
        point["name"]: point["results"][OURS]["median"] for point in points if point["name"] in HEADLINES
    }
    ratios = {point["name"]: ratio for point in points if (ratio := ratio_to_best_peer(point)) is not None}
    peers: dict[str, dict[str, Any]] = {}
    for point in points:
        for name, measured in point["results"].items():
            if name != OURS:
                peers.setdefault(name, {})[point["name"]] = measured["median"]
    read = {key: value for key, value in result["rooflines"]["read"].items() if key != "samples_by_prefetch_bytes"}
    summed = figures | {
        "rooflines": {point["name"]: point["roofline"] for point in points if point["roofline"]},
        "read": read,
        "peak_operations_per_second": result["rooflines"]["peak_operations_per_second"],
        "peers": peers,
        "failures": result["failures"],
        "ratio_to_best_peer": ratios,
    }
    return dict(rounded(summed))


def machine_line(result: Result) -> str:
    """The machine in a sentence."""
    machine = result["machine"]
    memory = f"{machine['memory_bytes'] / 2**30:.0f} GiB" if machine["memory_bytes"] else "unknown memory"
    flags = ", ".join(machine["flags"])
    return f"{machine['processor']}, {machine['cores']} cores, {memory}; {flags}"


def peer_names(points: Sequence[Result]) -> list[str]:
    """In the order in which they took turns."""
    names = dict.fromkeys(name for point in points for name in point["results"])
    return [name for name in names if name != OURS]
