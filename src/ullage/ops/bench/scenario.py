"""Scenarios: what is measured, as TOML files. An unknown key is an error.

description = "..."
include = ["standard"]        # workloads of other scenarios that come with Ullage, before its own
[engine]                      # settings of the engine that aren't given otherwise
max_num_seqs = 64
[[workload]]
name = "decode32_tok_s"
kind = "throughput"           # start | decode | throughput | prefill | memory
num_sequences = 32            # a list of values (also of prompt_tokens, kv_memory) is a point for each
prompt_tokens = 256
new_tokens = 128
repeats = 5
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

from ullage.base.byte_sizes import parse_bytes
from ullage.base.config import check_known_names
from ullage.base.errors import ConfigError

Kind = Literal["start", "decode", "throughput", "prefill", "memory"]

KEYS = ("description", "include", "engine", "workload")
WORKLOAD_KEYS = ("name", "kind", "num_sequences", "prompt_tokens", "new_tokens", "repeats", "kv_memory")
SERIES_KEYS = ("num_sequences", "prompt_tokens", "kv_memory")


@dataclass(frozen=True, slots=True)
class Point:
    """One figure to measure.

    start       seconds from the start of a fresh process to its first token
    decode      new tokens a second of all sequences together, their prompts and first tokens left out
    throughput  new tokens a second of all sequences together, the time for their prompts included
    prefill     prompt tokens a second, until the first new token is there
    memory      bytes resident, idle and under load
    """

    workload: str
    """The series it belongs to."""
    name: str
    kind: Kind
    num_sequences: int
    prompt_tokens: int
    """Of each sequence."""
    new_tokens: int
    """Of each sequence."""
    repeats: int
    kv_memory: int | None
    """Bytes of the KV pool; None: as the settings have it."""

    @property
    def unit(self) -> str:
        return {"start": "s", "memory": "bytes"}.get(self.kind, "tokens/s")

    @property
    def request_tokens(self) -> int:
        return self.prompt_tokens + self.new_tokens


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    description: str
    engine: Mapping[str, object]
    """Settings of the engine, by name, that hold where nobody says otherwise."""
    points: tuple[Point, ...]


def scenario_names() -> list[str]:
    """Those that come with Ullage."""
    files = (resources.files(__package__) / "scenarios").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def load_scenario(name_or_path: str) -> Scenario:
    """
    :param name_or_path: one that comes with Ullage, or a TOML file
    :raises ConfigError: no such scenario, or one that can't be honoured
    """
    if name_or_path in scenario_names():
        text = (resources.files(__package__) / "scenarios" / f"{name_or_path}.toml").read_text("utf-8")
        return parse_scenario(name_or_path, text)
    path = Path(name_or_path)
    try:
        return parse_scenario(path.stem, path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        hint = f"there are: {', '.join(scenario_names())}; or give a TOML file"
        raise ConfigError(f"{name_or_path} is no scenario", hint=hint) from None


def parse_scenario(name: str, text: str) -> Scenario:
    """:raises ConfigError: not TOML, a key nobody knows, or a value that can't be honoured"""
    where = f"scenario {name}"
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not TOML: {error}") from error
    check_known_names(table, KEYS, where=where)
    points = [point for other in table.get("include", ()) for point in load_scenario(other).points]
    for workload in table.get("workload", ()):
        points += _points_of(workload, where)
    names = [point.name for point in points]
    if not names:
        raise ConfigError(f"{where} has no workload")
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ConfigError(f"{where} has two workloads of the name {min(twice)}")
    return Scenario(name, str(table.get("description", "")), table.get("engine", {}), tuple(points))


def _points_of(workload: Mapping[str, Any], where: str) -> list[Point]:
    check_known_names(workload, WORKLOAD_KEYS, where=f"a workload of {where}")
    name, kind = workload.get("name"), workload.get("kind")
    if not isinstance(name, str) or kind not in get_args(Kind):
        raise ConfigError(f"{where}: a workload needs a name and a kind of {', '.join(get_args(Kind))}")
    series = [key for key in SERIES_KEYS if isinstance(workload.get(key), list)]
    if len(series) > 1:
        raise ConfigError(f"{where}: {name} has lists in {' and '.join(series)}; only one key of a workload may have")
    if not series:
        return [_point(name, name, workload, where)]
    (key,) = series
    return [_point(name, f"{name}-{value}", {**workload, key: value}, where) for value in workload[key]]


def _point(series: str, name: str, workload: Mapping[str, Any], where: str) -> Point:
    def count(key: str, default: int, at_least: int = 1) -> int:
        value = workload.get(key, default)
        if type(value) is not int or value < at_least:
            raise ConfigError(f"{where}: {key} of {name} must be a whole number of at least {at_least}, got {value!r}")
        return value

    kind: Kind = workload["kind"]
    kv_memory = workload.get("kv_memory")
    return Point(
        workload=series,
        name=name,
        kind=kind,
        num_sequences=count("num_sequences", 1),
        prompt_tokens=count("prompt_tokens", 16),
        new_tokens=count("new_tokens", 1, at_least=2 if kind == "decode" else 1),
        repeats=count("repeats", 3),
        kv_memory=None if kv_memory is None else parse_bytes(str(kv_memory)),
    )
