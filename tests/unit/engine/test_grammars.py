from __future__ import annotations

import json
from typing import Any

import pytest

from ullage.base.errors import InvalidRequestError
from ullage.engine import grammars
from ullage.engine.constraint import Constraint, ConstraintKind
from ullage.engine.grammars import GrammarCompiler, inline_schema


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler.of_bytes()


def accepts(compiler: GrammarCompiler, kind: ConstraintKind, text: str, output: str) -> bool:
    """Whether the whole output may be written and end there."""
    matcher = compiler.matcher(Constraint(kind, text))
    data = list(output.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "object"}, '{"a": [1, {"b": null}]}', "[1]"),
        ({"type": "string", "pattern": r"^hello\!$"}, '"hello!"', '"hello"'),
        ({"type": "string", "pattern": "^a+$", "maxLength": 3}, '"aaa"', '"aaaa"'),
        ({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}, "{}", '{"b":1}'),
        (
            {"type": "object", "properties": {'q"uo"te 名前': {"type": "string"}}, "required": ['q"uo"te 名前']},
            '{"q\\"uo\\"te 名前": "x"}',
            "{}",
        ),
        ({"enum": ["a", 1, None]}, "null", '"b"'),
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, '{"a": 1}', r'{"a": 1, "\u0061": "x"}'),
        ({}, '"a"', '"\\ud800"'),
        (
            {"$defs": {"n": {"type": ["array", "null"], "items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"},
            "[[]]",
            "[1]",
        ),
    ],
    ids=str,
)
def test_a_schema_is_followed(compiler: GrammarCompiler, schema: Any, right: str, wrong: str) -> None:
    assert accepts(compiler, "json_schema", json.dumps(schema), right)
    assert not accepts(compiler, "json_schema", json.dumps(schema), wrong)


def test_white_space_in_json_has_an_end(compiler: GrammarCompiler) -> None:
    assert accepts(compiler, "json_object", "", '{"a":\n' + " " * 20 + "1}")
    assert not accepts(compiler, "json_object", "", '{"a":\n' + " " * 30 + "1}")


def test_regular_expressions_and_grammars_are_followed(compiler: GrammarCompiler) -> None:
    assert accepts(compiler, "regex", r"\d{4}|never", "2026")
    assert not accepts(compiler, "regex", r"\d{4}|never", "20261")
    assert accepts(compiler, "grammar", 'start: "(" start ")" | ""', "((()))")
    assert not accepts(compiler, "grammar", 'start: "(" start ")" | ""', "((())")
    assert accepts(compiler, "grammar", f'start: "x" {inline_schema({"type": "integer"})}', "x12")


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("regex", "(", "unclosed group"),
        ("regex", "[a", "unclosed character class"),
        ("regex", "(?=a)b", "look-around"),
        ("regex", r"[^\x00-\x{10FFFF}]", "allows no text"),
        ("grammar", "start: start", "without end"),
        ("grammar", 'start: "a" start', "without end"),
        ("grammar", "start: " + "(" * 10_000 + '"a"' + ")" * 10_000, "too deeply nested"),
        ("json_schema", "[", "not JSON"),
        ("json_schema", '{"type": "strng"}', "Invalid type"),
        ("json_schema", '{"type": "integer", "minimum": 5, "maximum": 1}', "greater than"),
        ("json_schema", '{"$ref": "#/$defs/none"}', "does not exist"),
        ("json_schema", '{"enum": []}', "empty"),
        ("json_schema", '{"uniqueItems": true, "type": "array"}', "uniqueItems"),
        ("json_schema", '{"not": {}, "x-guidance": {"lenient": true}}', "not"),
        ("json_schema", "false", "empty"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_the_reason(
    compiler: GrammarCompiler, kind: ConstraintKind, text: str, reason: str
) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        compiler.matcher(Constraint(kind, text))


def test_a_reason_does_not_repeat_the_text(compiler: GrammarCompiler) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        compiler.matcher(Constraint("regex", "secret("))
    assert "secret" not in str(caught.value)


def test_matchers_of_one_constraint_are_apart_from_each_other(compiler: GrammarCompiler) -> None:
    first, second = (compiler.matcher(Constraint("regex", "ab")) for _ in range(2))
    assert first.consume_token(ord("a"))
    assert second.consume_token(ord("a"))


def test_no_more_grammars_are_kept_than_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = GrammarCompiler.of_bytes()
    monkeypatch.setattr(grammars, "MAX_CACHED", 2)
    for text in "abcd":
        compiler.matcher(Constraint("regex", text))
    assert [constraint.text for constraint in compiler._compiled] == ["c", "d"]


def test_a_model_that_cannot_end_a_text_takes_no_constraint() -> None:
    with pytest.raises(InvalidRequestError, match="end-of-sequence"):
        GrammarCompiler([b"a"], []).matcher(Constraint("regex", "a"))
