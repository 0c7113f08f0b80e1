"""Versions of engines, and bounds where only those are known."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ullage.base.errors import ConfigError

_VERSION = re.compile(r"\s*(<=|>=|<|>|==)?\s*[vb]?(\d{1,9}(?:\.\d{1,9}){0,3})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Version:
    """``0.15.2rc1``, a build like ``b850``, or a bound like ``<0.21``.

    :ivar numbers: the numbers before any suffix
    :ivar below: the version is some one before these numbers
    """

    numbers: tuple[int, ...]
    below: bool = False

    def at_least(self, *numbers: int) -> bool:
        """Whether rules that came with ``numbers`` apply. A bound counts as the nearest version that it allows."""
        return self.numbers > numbers if self.below else self.numbers >= numbers


def parse_version(text: str) -> Version:
    """:raises ConfigError: not a version"""
    match = _VERSION.match(text)
    if match is None:
        raise ConfigError(f"engine_version must be like 0.11.0, b4500 or <0.21, got {text!r}")
    operator, numbers = match.groups()
    return Version(tuple(int(number) for number in numbers.split(".")), below=operator == "<")
