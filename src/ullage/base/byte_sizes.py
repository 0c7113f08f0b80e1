"""Sizes in bytes as people write and read them. GiB (1024³) and GB (1000³) are told apart; a bare ``G`` is refused."""

from __future__ import annotations

import re
from fractions import Fraction

from ullage.base.errors import ConfigError

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "tib": 1024**4,
}
_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*([a-z]*)", re.IGNORECASE | re.ASCII)


def parse_bytes(text: str, *, round_down: bool = False) -> int:
    """``64MiB``, ``1.5 GiB``, ``2GB`` or a plain number of bytes.

    :param round_down: drop a part of a byte, for figures that others printed with two decimals, like ``23.58GiB``
    :raises ConfigError: not a size, an unknown or ambiguous unit, or not a whole number of bytes
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{text!r} is not a size in bytes", hint="write it like 64MiB, 1.5GiB or 2GB")
    number, unit = match.groups()
    scale = _UNITS.get(unit.lower())
    if scale is None:
        first = unit[0].upper() if unit[0].lower() in "kmgt" else "G"
        raise ConfigError(
            f"{text!r} has no unit of bytes that we know",
            hint=f"write {number}{first}iB for powers of 1024 or {number}{first}B for powers of 1000",
        )
    size = Fraction(number) * scale
    if size.denominator != 1 and not round_down:
        raise ConfigError(f"{text!r} is not a whole number of bytes", hint="use a smaller unit")
    return int(size)


def format_bytes(num_bytes: int) -> str:
    """For people: three or four digits and a unit that is a power of 1024, like ``87.4 MiB``."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
