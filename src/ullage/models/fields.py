"""Typed, checked look-ups in the key-value part of a model file. Every error names the file and the key."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from ullage.base.errors import ModelFileError

SMALL = 1e-6
"""Below any factor that a model file states on purpose; keeps divisions by factors finite."""

MAX_SIZE = 2**31 - 1
"""No dimension of a real model comes near; larger values are damage."""


class Fields:
    """The keys of one section. JSON's null counts as absent.

    :param section: what the keys stand under, for messages (``llama.`` or ``rope_scaling.``)
    """

    def __init__(self, path: Path, values: Mapping[str, object], section: str = "") -> None:
        self.path = path
        self._values = values
        self._section = section

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def states(self, key: str) -> bool:
        """Like ``has``, but true for an explicit null as well."""
        return key in self._values

    def raw(self, key: str) -> object:
        return self._values.get(key)

    def error(self, key: str, problem: str, hint: str | None = None) -> ModelFileError:
        return ModelFileError(f"{self.path}: {self._section}{key} {problem}", hint=hint)

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1, maximum: int = MAX_SIZE) -> int:
        """:raises ModelFileError: missing without a default, not a whole number, or out of range"""
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, f"must be a whole number, not {value!r:.80}")
        if not minimum <= value <= maximum:
            raise self.error(key, f"must be between {minimum} and {maximum}, not {value!r:.80}")
        return value

    def number(self, key: str, default: float | None = None, *, above: float = 0.0, maximum: float = 1e12) -> float:
        """A finite number ``above < value <= maximum``.

        :raises ModelFileError: missing without a default, not a number, or out of range
        """
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, f"must be a number, not {value!r:.80}")
        if not (above < value <= maximum) or not math.isfinite(value):
            raise self.error(key, f"must be above {above:g} and at most {maximum:g}, not {value!r:.80}")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        """:raises ModelFileError: missing without a default, or not a text"""
        value = self._required(key, default)
        if not isinstance(value, str):
            raise self.error(key, f"must be a text, not {value!r:.80}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """:raises ModelFileError: neither true nor false"""
        value = self._required(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false, not {value!r:.80}")
        return value

    def section(self, key: str) -> Fields | None:
        """The keys under ``key``; None when absent.

        :raises ModelFileError: not a section
        """
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, f"must be an object, not {value!r:.80}")
        return Fields(self.path, value, f"{self._section}{key}.")

    def _required(self, key: str, default: object) -> object:
        value = self.raw(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(key, "is missing")
        return value


def parse_json_object(path: Path, text: bytes, what: str) -> dict[str, object]:
    """:raises ModelFileError: not one JSON object in UTF-8, or a key that stands twice"""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        keys = dict(pairs)
        if len(keys) != len(pairs):
            raise ValueError("a key stands twice")
        return keys

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: {what} isn't valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: {what} must be a JSON object")
    return value


def read_json_object(path: Path, max_bytes: int) -> dict[str, object]:
    """:raises ModelFileError: missing, unreadable, larger than ``max_bytes``, or not a JSON object"""
    try:
        with path.open("rb") as file:
            text = file.read(max_bytes + 1)
    except OSError as error:
        raise ModelFileError(f"{path}: can't be read: {error.strerror}") from None
    if len(text) > max_bytes:
        raise ModelFileError(f"{path}: larger than {max_bytes} bytes, which no such file is")
    return parse_json_object(path, text, "the file")
