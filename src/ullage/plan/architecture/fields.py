"""Reading a model's ``config.json``: every value is checked where it is read, and an error names its field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from ullage.base.errors import ConfigError

MAX_LAYERS = 10_000
MAX_SIZE = 2**40
"""No dimension of a model comes near; beyond it the file is damaged."""

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object of a configuration, with its path for error messages.

    :ivar values: the object
    :ivar path: where it stands: ``config.json`` or ``config.json: text_config``
    """

    values: Mapping[str, object]
    path: str = "config.json"
    read: set[str] = field(default_factory=set)
    """Names that somebody asked for; what nobody asked for can be checked afterwards."""

    @classmethod
    def of(cls, raw: object, path: str = "config.json") -> Fields:
        """:raises ConfigError: not a JSON object"""
        if not isinstance(raw, Mapping):
            raise ConfigError(f"{path} must be a JSON object, got {_shown(raw)}")
        return cls({str(name): value for name, value in raw.items()}, path)

    def has(self, *names: str) -> bool:
        """Whether one of the names has a value other than null."""
        return self._find(names) is not None

    def integer(self, *names: str, default: int | None = None, at_least: int = 1, at_most: int = MAX_SIZE) -> int:
        """The whole number under the first of ``names`` that has a value.

        :raises ConfigError: absent without a default, not a whole number, or out of bounds
        """
        value = self.optional_integer(*names, at_least=at_least, at_most=at_most)
        if value is not None:
            return value
        if default is None:
            raise ConfigError(f"{self.path} has no {names[0]}", hint="memory can't be worked out without it")
        return default

    def optional_integer(self, *names: str, at_least: int = 1, at_most: int = MAX_SIZE) -> int | None:
        """As ``integer``; None where no name has a value."""
        found = self._find(names)
        if found is None:
            return None
        name, value = found
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not at_least <= value <= at_most:  # type: ignore[operator]
            raise self.wrong(name, f"a whole number from {at_least:,} to {at_most:,}")
        assert isinstance(value, int)
        return value

    def number(self, *names: str, default: float) -> float:
        """:raises ConfigError: not a finite number above 0"""
        found = self._find(names)
        if found is None:
            return default
        name, value = found
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise self.wrong(name, "a finite number above 0")
        return float(value)

    def boolean(self, *names: str, default: bool) -> bool:
        """:raises ConfigError: neither true nor false"""
        found = self._find(names)
        if found is None:
            return default
        name, value = found
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def text(self, *names: str, default: str | None = None) -> str:
        """:raises ConfigError: absent without a default, or not text"""
        found = self._find(names)
        if found is None:
            if default is None:
                raise ConfigError(f"{self.path} has no {names[0]}")
            return default
        name, value = found
        if not isinstance(value, str):
            raise self.wrong(name, "text")
        return value

    def texts(self, *names: str) -> tuple[str, ...] | None:
        """A list of texts; None where there is none."""
        return self._list(names, str, "a list of texts")

    def integers(self, *names: str) -> tuple[int, ...] | None:
        """A list of whole numbers, none negative; None where there is none."""
        expected = "a list of whole numbers, none negative"
        numbers = self._list(names, int, expected)
        if numbers is not None and not all(0 <= number <= MAX_SIZE for number in numbers):
            raise self.wrong(next(name for name in names if self.has(name)), expected)
        return None if numbers is None else tuple(int(number) for number in numbers)  # true counts as 1

    def section(self, *names: str) -> Fields | None:
        """A nested object; None where there is none.

        :raises ConfigError: not an object
        """
        found = self._find(names)
        return None if found is None else Fields.of(found[1], f"{self.path}: {found[0]}")

    def with_defaults(self, defaults: Mapping[str, object]) -> Fields:
        """The same object, with values for names that it lacks; null is a value: it says that there is none."""
        return Fields({**defaults, **self.values}, self.path, self.read)

    def wrong(self, name: str, expected: str) -> ConfigError:
        """The error for a value that isn't what was expected."""
        return ConfigError(f"{self.path}: {name} must be {expected}, got {_shown(self.values.get(name))}")

    def _find(self, names: tuple[str, ...]) -> tuple[str, object] | None:
        self.read.update(names)
        for name in names:
            value = self.values.get(name)
            if value is not None:
                return name, value
        return None

    def _list(self, names: tuple[str, ...], kind: type[_Value], expected: str) -> tuple[_Value, ...] | None:
        found = self._find(names)
        if found is None:
            return None
        name, value = found
        if not isinstance(value, list) or len(value) > MAX_LAYERS or not all(isinstance(item, kind) for item in value):
            raise self.wrong(name, expected)
        return tuple(value)


def _shown(value: object) -> str:
    """A value in an error message, on one line and cut short."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
