"""Lengths of requests out of a log: CSV with a heading, or JSON lines, as gateways and servers write them.

Lengths are kept to a 32nd, rounded up, so that a log of any size needs little memory. The longest request is exact.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TextIO

from ullage.base.errors import ConfigError
from ullage.plan.deployment.workload import LONGEST, RequestLength, Workload, rounded_up

PROMPT_NAMES = ("prompt_tokens", "input_tokens", "num_prompt_tokens", "prompt_len", "input_length", "contexttokens")
OUTPUT_NAMES = (
    "completion_tokens",
    "output_tokens",
    "generated_tokens",
    "num_output_tokens",
    "output_len",
    "output_length",
    "generatedtokens",
)
TIME_NAMES = ("timestamp", "created", "time", "arrival_time")
"""Names of columns and keys, in any case; the first that is there counts. JSON may have them within ``usage``."""
MAX_LINE_CHARS = 1 << 20

Row = tuple[int, Mapping[str, object]]
"""Number of a line, and what it has by lower-case names."""


def read_request_log(path: Path, arrivals_per_second: float | None = None) -> Workload:
    """:param arrivals_per_second: None: as the times of the log have it, if it has any

    :raises ConfigError: no such log, or a line that can't be used
    """
    counts: Counter[tuple[int, int]] = Counter()
    longest = (0, 0)
    first = last = None
    for number, row in _rows(path):
        length = tuple(_tokens(path, number, row, names) for names in (PROMPT_NAMES, OUTPUT_NAMES))
        longest = max(longest, (length[0], length[1]), key=sum)
        counts[rounded_up(length[0]), rounded_up(length[1])] += 1
        time = _time(path, number, row)
        if time is not None:
            first, last = min(time if first is None else first, time), max(time if last is None else last, time)
    total = counts.total()
    if not total:
        raise ConfigError(f"{path} holds no request", hint="one request a line, after a heading in CSV")
    if arrivals_per_second is None and first is not None and last is not None and last > first:
        arrivals_per_second = (total - 1) / (last - first)
    most = sum(longest)
    lengths = [RequestLength(*length, count / total) for length, count in counts.items() if sum(length) < most]
    rest = 1 - sum(length.share for length in lengths)
    return Workload((*lengths, RequestLength(*longest, rest)), arrivals_per_second, f"{total:,} requests of {path}")


def _rows(path: Path) -> Iterator[Row]:
    if not path.is_file():  # a pipe would be waited for
        raise ConfigError(f"{path}: no such file", hint="give a CSV file or a file of JSON lines")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = _lines(path, file)
            try:
                number, head = next(lines)
            except StopIteration:
                return
            if head.lstrip().startswith("{"):
                yield number, _object(path, number, head)
                for number, line in lines:
                    yield number, _object(path, number, line)
            else:
                yield from _table(path, head, lines)
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text", hint="give a CSV file or a file of JSON lines") from None
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None


def _lines(path: Path, file: TextIO) -> Iterator[tuple[int, str]]:
    number = 0
    while line := file.readline(MAX_LINE_CHARS + 1):
        number += 1
        if len(line) > MAX_LINE_CHARS:
            raise ConfigError(f"{path}, line {number}: longer than {MAX_LINE_CHARS:,} characters")
        if line.strip():
            yield number, line


def _object(path: Path, number: int, line: str) -> Mapping[str, object]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}, line {number}: no JSON object")
    usage = value.get("usage")
    found = {**value, **usage} if isinstance(usage, dict) else value
    return {str(name).lower(): item for name, item in found.items()}


def _table(path: Path, head: str, lines: Iterator[tuple[int, str]]) -> Iterator[Row]:
    names = [name.strip().lower() for name in next(csv.reader([head]))]
    for number, line in lines:
        cells = next(csv.reader([line]))
        if len(cells) != len(names):
            raise ConfigError(f"{path}, line {number}: {len(cells)} columns, but {len(names)} in the heading")
        yield number, dict(zip(names, cells, strict=True))


def _tokens(path: Path, number: int, row: Mapping[str, object], names: tuple[str, ...]) -> int:
    name = next((name for name in names if name in row), None)
    if name is None:
        raise ConfigError(
            f"{path}, line {number}: none of {', '.join(names)}", hint="one of these says how many tokens"
        )
    value = row[name]
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LONGEST:
        raise ConfigError(f"{path}, line {number}: {name} is no number of tokens: {str(value)[:40]!r}")
    return value


def _time(path: Path, number: int, row: Mapping[str, object]) -> float | None:
    """Seconds of some clock."""
    name = next((name for name in TIME_NAMES if name in row), None)
    if name is None:
        return None
    text = str(row[name])
    for read in (float, lambda text: _date(text).timestamp()):
        try:
            seconds = read(text)
        except (ValueError, OverflowError):
            continue
        if math.isfinite(seconds):
            return seconds
    raise ConfigError(f"{path}, line {number}: {name} is no time: {text[:40]!r}")


def _date(text: str) -> datetime:
    """An ISO date; of more than six decimals of a second, six are read."""
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))
