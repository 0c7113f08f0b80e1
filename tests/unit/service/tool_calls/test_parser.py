from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.service.tool_calls.formats import FORMATS, HERMES, LLAMA3_JSON, MISTRAL, ToolCallFormat
from ullage.service.tool_calls.parser import CallArguments, CallBegins, Content, ToolCallParser

ARGUMENTS = '{"city": "Zürich \\"West\\" 🌦 }{", "days": 3, "where": {"lat": [1, -2.5e3]}, "tags": ["a", "]"]}'
CALL = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'
OTHER = '{"name": "time", "arguments": {}}'

Found = tuple[str, list[tuple[str, str]]]


def parse(format_: ToolCallFormat, pieces: Sequence[str], *, cut: bool = False) -> Found:
    """(content, [(name, arguments)]); each call is told once, before its arguments."""
    parser = ToolCallParser(format_, ["weather", "time"])
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish(cut=cut)
    content, calls = "", []
    for event in events:
        match event:
            case Content(text):
                content += text
            case CallBegins(index, name):
                assert index == len(calls)
                calls.append((name, ""))
            case CallArguments(index, text):
                assert index == len(calls) - 1, "arguments of a call that isn't the last"
                calls[index] = (calls[index][0], calls[index][1] + text)
    assert parser.num_calls == len(calls)
    return content, calls


def written(format_: ToolCallFormat, *calls: str) -> str:
    if format_ is HERMES:
        return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)
    if format_ is MISTRAL:
        return f"[TOOL_CALLS] [{', '.join(calls)}]"
    return "; ".join(call.replace('"arguments"', '"parameters"') for call in calls)


def every_cut(text: str) -> list[list[str]]:
    return [list(text), [text], *([text[:i], text[i:]] for i in range(1, len(text)))] + [
        [text[i : i + size] for i in range(0, len(text), size)] for size in (3, 7)
    ]


@pytest.mark.parametrize("format_", FORMATS.values(), ids=list(FORMATS))
def test_arguments_are_passed_on_to_the_letter_however_the_text_is_cut(format_: ToolCallFormat) -> None:
    text = written(format_, CALL, OTHER)
    for pieces in every_cut(text):
        assert parse(format_, pieces) == ("", [("weather", ARGUMENTS), ("time", "{}")])


@pytest.mark.parametrize("format_", FORMATS.values(), ids=list(FORMATS))
def test_a_call_without_arguments_has_an_empty_object(format_: ToolCallFormat) -> None:
    for pieces in every_cut(written(format_, '{"name": "time"}')):
        assert parse(format_, pieces) == ("", [("time", "{}")])


@pytest.mark.parametrize("format_", FORMATS.values(), ids=list(FORMATS))
def test_arguments_before_the_name_wait_for_it(format_: ToolCallFormat) -> None:
    for pieces in every_cut(written(format_, '{"arguments": {"a": 1}, "name": "time"}')):
        assert parse(format_, pieces) == ("", [("time", '{"a": 1}')])


def test_arguments_written_as_a_text_are_taken_out_of_it() -> None:
    call = json.dumps({"name": "time", "arguments": '{"zone": "CET"}'})
    assert parse(HERMES, [written(HERMES, call)]) == ("", [("time", '{"zone": "CET"}')])


@pytest.mark.parametrize("format_", [HERMES, MISTRAL], ids=["hermes", "mistral"])
def test_text_before_calls_is_content_without_the_white_space_between(format_: ToolCallFormat) -> None:
    for pieces in every_cut("I look [it] <tool up.\n\n" + written(format_, OTHER)):
        assert parse(format_, pieces) == ("I look [it] <tool up.", [("time", "{}")])


@pytest.mark.parametrize("format_", FORMATS.values(), ids=list(FORMATS))
@given(text=st.text(alphabet=' \n<>[]{}":;,/aT', max_size=40))
def test_a_text_without_calls_is_content_to_the_letter(format_: ToolCallFormat, text: str) -> None:
    assert parse(format_, list(text)) == parse(format_, [text]) == (text, [])


@pytest.mark.parametrize("format_", FORMATS.values(), ids=list(FORMATS))
@given(data=st.data())
def test_pieces_of_markup_in_any_order_lose_nothing_by_how_they_are_cut(
    format_: ToolCallFormat, data: st.DataObject
) -> None:
    parts = [
        CALL,
        OTHER,
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "<|python_tag|>",
        "{",
        "}",
        "[",
        "]",
        ";",
        "\n",
    ]
    text = "".join(data.draw(st.lists(st.sampled_from([*parts, "text", '{"name": "time", ']), max_size=8)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parse(format_, pieces) == parse(format_, [text]) == parse(format_, list(text))


@pytest.mark.parametrize("format_", FORMATS.values(), ids=list(FORMATS))
def test_an_answer_cut_by_length_shows_no_markup(format_: ToolCallFormat) -> None:
    text = written(format_, CALL)
    for end in range(2, len(text)):
        content, calls = parse(format_, [text[:end]], cut=True)
        assert content == ""
        assert not calls or (calls[0][0] == "weather" and ARGUMENTS.startswith(calls[0][1]))


def test_a_mark_without_a_call_behind_it_is_content() -> None:
    text = "write <tool_call> here, and <tool_call>{} there"
    for pieces in every_cut(text):
        assert parse(HERMES, pieces) == (text, [])


def test_what_follows_a_broken_call_shows_no_markup() -> None:
    text = '<tool_call>{"name": "time", "arguments": {"a": 1}}}</tool_call>\n' + written(HERMES, OTHER)
    assert parse(HERMES, [text]) == ("", [("time", '{"a": 1}'), ("time", "{}")])


def test_json_that_names_no_function_is_an_answer() -> None:
    text = '{"name": "Bob", "age": 3}'
    for pieces in every_cut(text):
        assert parse(LLAMA3_JSON, pieces) == (text, [])


def test_llama_calls_may_begin_with_their_control_token() -> None:
    assert parse(LLAMA3_JSON, list("<|python_tag|>" + written(LLAMA3_JSON, OTHER))) == ("", [("time", "{}")])
