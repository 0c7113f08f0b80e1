"""What a constraint may ask of the compiler: bounds that are checked on its text, before anything is compiled.

The compiler has limits of its own, but some texts make it work for seconds or overrun its stack before it meets them:
repetitions that multiply (``((a{1000}){1000}){1000}``), and rules or references that lead from one to the next.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from ullage.base.errors import InvalidRequestError
from ullage.engine.constraint import Constraint
from ullage.engine.grammar_ends import has_ending_text
from ullage.engine.schema_ends import has_ending_instance

MAX_TEXT_CHARS = 128 * 1024
MAX_REPETITIONS = 20_000
"""Characters that a regular expression may come to, beyond its own length, when its repetitions are written out; and
the most that a schema may demand of a string's characters or a list's entries."""
MAX_RULES = 1_000
"""Rules of a grammar, references of a schema: each may lead to the next, and the compiler follows by recursion."""

_RULE = re.compile(r"^[ \t]*[?!]?[\w-]+(?:\{[^}\n]*\}|::[\w-]+|\[[^]\n]*\]|\.\d+)*[ \t]*:", re.MULTILINE)
_COUNT = re.compile(r"\{(\d*)(?:,(\d*))?\}|~(\d+)(?:\.\.(\d+))?")
_MINIMA = ("minLength", "minItems", "minProperties")


def check_limits(constraint: Constraint) -> None:
    """:raises InvalidRequestError: the text is too long, too deep or repeats too much"""
    text = constraint.text
    if len(text) > MAX_TEXT_CHARS:
        raise InvalidRequestError(f"it has {len(text)} characters, but at most {MAX_TEXT_CHARS} are compiled")
    if constraint.kind == "json_schema":
        _check_schema(text)
    elif constraint.kind == "regex":
        _check_size(text)
    elif constraint.kind == "grammar":
        _check_grammar(text)


def _check_schema(text: str) -> None:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"it is not JSON that can be read: {type(error).__name__}") from None
    num_references = 0
    for part in _objects(schema):
        at_least = part.get("minProperties")
        required = part.get("required")
        if isinstance(at_least, int) and at_least > max(1, len(required) if isinstance(required, list) else 0):
            raise InvalidRequestError("minProperties is more than what is required, which can't be enforced")
    for name, value in _entries(schema):
        num_references += name == "$ref"
        if name == "pattern" and isinstance(value, str):
            _check_size(value)
        elif name == "patternProperties" and isinstance(value, dict):
            for pattern in value:
                _check_size(pattern)
        elif name in _MINIMA and isinstance(value, int | float) and value > MAX_REPETITIONS:
            raise InvalidRequestError(f"{name} is above {MAX_REPETITIONS}")
        elif name == "$ref" and isinstance(value, str) and not value.startswith("#"):
            raise InvalidRequestError("a $ref leads out of it, which isn't followed")
        elif name == "required" and isinstance(value, list) and len(value) > MAX_RULES:
            raise InvalidRequestError(f"required has more than {MAX_RULES} entries")
    if num_references > MAX_RULES:
        raise InvalidRequestError(f"it has more than {MAX_RULES} references")
    if num_references and not has_ending_instance(schema):
        raise InvalidRequestError("it refers to itself without end, so no text matches it")


def _entries(schema: object) -> Iterator[tuple[str, object]]:
    """Every key of every object in it, with its value."""
    return (entry for part in _objects(schema) for entry in part.items())


def _objects(schema: object) -> Iterator[dict[str, object]]:
    open_values = [schema]
    while open_values:
        value = open_values.pop()
        if isinstance(value, dict):
            yield value
            open_values += value.values()
        elif isinstance(value, list):
            open_values += value


def _check_grammar(text: str) -> None:
    if len(_RULE.findall(text)) > MAX_RULES or text.count("$ref") > MAX_RULES:
        raise InvalidRequestError(f"it has more than {MAX_RULES} rules")
    if not has_ending_text(text):
        raise InvalidRequestError("it refers to itself without end, so no text matches it")
    product = 1  # a rule that repeats may stand in a rule that repeats
    for line in text.splitlines():
        _check_size(line)
        if "%json" in line:  # its patterns aren't within each other
            continue
        product *= max([_count(match) for match in _COUNT.finditer(line)], default=1)
        if product > MAX_REPETITIONS:
            raise InvalidRequestError(f"its repetitions multiply to more than {MAX_REPETITIONS}")


def _check_size(pattern: str) -> None:
    """:raises InvalidRequestError: the pattern is too long when its counted repetitions are written out"""
    sizes = [0]
    """Of the open groups, the outermost first."""
    total = last = 0
    position = 0
    while position < len(pattern):
        char = pattern[position]
        counted = _COUNT.match(pattern, position)
        if counted:
            added = last * (_count(counted) - 1)
            sizes[-1] += added
            total += added
            last *= _count(counted)
            position = counted.end()
        else:
            if char == "(":
                sizes.append(0)
                last = 0
            elif char == ")" and len(sizes) > 1:
                last = sizes.pop()
                sizes[-1] += last
            else:
                last = 1
                sizes[-1] += 1
                total += 1
            position += 2 if char == "\\" else 1
        if total > len(pattern) + MAX_REPETITIONS:
            raise InvalidRequestError(f"its repetitions multiply to more than {MAX_REPETITIONS} characters")


def _count(match: re.Match[str]) -> int:
    """The largest number of a repetition; an open end costs what its beginning does."""
    return max([int(number[:12]) for number in match.groups() if number], default=1) or 1
