from __future__ import annotations

import json

import pytest

from ullage.base.errors import InvalidRequestError
from ullage.engine.constraint import Constraint, ConstraintKind
from ullage.engine.grammar_limits import MAX_TEXT_CHARS, check_limits


def chain(count: int) -> str:
    return "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(count)) + f'r{count}: "a"'


def references(count: int) -> str:
    definitions = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(count)}
    return json.dumps({"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{count}": {"type": "string"}}})


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("regex", "a{1000000000}", "repetitions"),
        ("regex", "((a{100}){100}){100}", "repetitions"),
        ("regex", "(a{1000}b{1000}){100,}", "repetitions"),
        ("regex", "a" * (MAX_TEXT_CHARS + 1), "characters"),
        ("json_schema", json.dumps({"type": "string", "pattern": "a{99999}"}), "repetitions"),
        ("json_schema", json.dumps({"patternProperties": {"a{99999}": True}}), "repetitions"),
        ("json_schema", json.dumps({"type": "string", "minLength": 10**9}), "minLength"),
        ("json_schema", json.dumps({"type": "object", "minProperties": 2}), "minProperties"),
        ("json_schema", json.dumps({"$ref": "http://localhost/a.json"}), r"\$ref"),
        ("json_schema", json.dumps({"$ref": "#"}), "without end"),
        ("json_schema", references(1001), "references"),
        ("json_schema", '{"items":' * 100_000, "characters"),
        ("json_schema", '{"items":' * 10_000, "not JSON"),
        ("json_schema", "{", "not JSON"),
        ("json_schema", json.dumps({"required": [str(i) for i in range(1001)]}), "required"),
        ("grammar", chain(1001), "rules"),
        ("grammar", 'start: U{1000}\nU: V{1000}\nV: "a"{1000}', "repetitions"),
        ("grammar", 'start: "a"~1000..100000', "repetitions"),
    ],
)
def test_what_would_take_too_long_is_refused(kind: ConstraintKind, text: str, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        check_limits(Constraint(kind, text))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json_object", ""),
        ("regex", r"\d{4}-\d{2}-\d{2}(T[\d:]{8}){0,100}\{99999999\}"),
        ("regex", "|".join(f"word{i}" for i in range(9000))),
        ("json_schema", references(100)),
        ("json_schema", json.dumps({"properties": {"pattern": {"type": "string"}, "minProperties": {}, "$ref": {}}})),
        ("json_schema", json.dumps({"type": "object", "minProperties": 2, "required": ["a", "b"]})),
        ("grammar", chain(900)),
        ("grammar", "start: a\n" + "\n".join(f'a{i}: %json {{"pattern": "[0-9a-f]{{12}}"}}' for i in range(9))),
        ("grammar", 'start: %json {"type": "object"} | "(" T{1,20}\nT[lazy]: /a{3}\\)/'),
    ],
)
def test_what_people_write_is_let_in(kind: ConstraintKind, text: str) -> None:
    check_limits(Constraint(kind, text))
