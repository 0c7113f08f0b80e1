from __future__ import annotations

import pytest

from ullage.engine.grammar_ends import has_ending_text


@pytest.mark.parametrize(
    "grammar",
    [
        "start: start",
        'start: "a" start',
        'start: a\na: "x" b\nb: a "|" | a b',
        'start: ("a" start)+',
        'start: (start | "x" start) "y"  // start: "a" | "b"',
        'start: "a"\n  | b\nstart: start',
        'start: start{1,3} %json {"a": "|"}',
    ],
)
def test_a_grammar_that_only_leads_back_to_itself_has_no_text(grammar: str) -> None:
    assert not has_ending_text(grammar)


@pytest.mark.parametrize(
    "grammar",
    [
        "",
        'start: "a"',
        'start: start start | "a" |',
        'start: "(" start ")" | ""',
        'start: "a" start?',
        'start: "a" [start]',
        'start: ("a" start)*',
        'start: start{0,2} "x"',
        'start: list\nlist: "[" (value ("," value)*)? "]"\nvalue: list | NUMBER\nNUMBER: /[0-9]+/',
        'start: call\ncall: %json {"properties": {"start": {"type": "object"}}}',
        "start: @other | <[3]>",
        'start: f\nf[lazy]: TEXT "x"\nTEXT: /(.|\\n)*/',
    ],
)
def test_a_grammar_with_a_way_out_has_a_text(grammar: str) -> None:
    assert has_ending_text(grammar)
