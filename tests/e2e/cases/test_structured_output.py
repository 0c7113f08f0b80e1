"""STO and TOOL: a constraint is followed in full or refused by name; forced calls are the same plain and streamed."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.near_ties import COMPARED, assert_same_answer
from tests.openai_api import CHAT, COMPLETIONS, Api, accepted, end_of, pieces_of, text_of

MESSAGES = [{"role": "user", "content": "Give me an example."}]


def response_format(schema: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}


def an_object(**properties: object) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


LIST = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["value", "next"],
    "additionalProperties": False,
}


def is_list(value: Any) -> bool:
    return value is None or (
        value.keys() == {"value", "next"} and type(value["value"]) is int and is_list(value["next"])
    )


FOLLOWED: dict[str, tuple[object, Callable[[Any], bool]]] = {
    "a pattern with an escape": (
        an_object(word={"type": "string", "pattern": "^hello\\!$"}),
        lambda value: value == {"word": "hello!"},
    ),
    "a recursion": (LIST, is_list),
    "a pattern and a length": (
        an_object(word={"type": "string", "pattern": "^[a-z]+$", "maxLength": 5}),
        lambda value: re.fullmatch("[a-z]{1,5}", value["word"]),
    ),
    "no other properties": (
        an_object(age={"type": "integer", "minimum": 1, "maximum": 99}),
        lambda value: value.keys() == {"age"} and 1 <= value["age"] <= 99,
    ),
    "a name with quotes and Chinese": (
        an_object(**{'say "你好"': {"enum": [1, "二"]}}),
        lambda value: value in ({'say "你好"': 1}, {'say "你好"': "二"}),
    ),
}
REFUSED: dict[str, object] = {
    "a broken pattern": an_object(word={"type": "string", "pattern": "^[a-z+$"}),
    "a look ahead": an_object(word={"type": "string", "pattern": "^(?=a)[a-z]+$"}),
    "an unknown type": an_object(word={"type": "strng"}),
    "a minimum above the maximum": an_object(age={"type": "integer", "minimum": 9, "maximum": 1}),
    "a reference to nowhere": an_object(word={"$ref": "#/$defs/nowhere"}),
    "a keyword that isn't supported": an_object(word={"type": "array", "uniqueItems": True}),
    "an empty enum": an_object(word={"enum": []}),
}
"""Each may as well be followed in full; free text is never an answer."""


@pytest.mark.parametrize("name", FOLLOWED)
@pytest.mark.parametrize("seed", [1, 2])
async def test_a_schema_is_followed_in_full(api, name, seed):
    schema, matches = FOLLOWED[name]
    asked = {"messages": MESSAGES, "max_tokens": 120, "temperature": 1, "seed": seed}
    answer = accepted(await api.post(CHAT, **asked, response_format=response_format(schema)))
    if answer["choices"][0]["finish_reason"] == "stop":
        assert matches(json.loads(text_of(answer)))
    else:
        assert name == "a recursion"


@pytest.mark.parametrize("name", REFUSED)
async def test_a_schema_that_is_not_followed_is_refused_by_name(api, name):
    error = await api.refused(CHAT, messages=MESSAGES, max_tokens=40, response_format=response_format(REFUSED[name]))
    assert error["param"].startswith("response_format")
    assert len(error["message"]) > 20


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [({"regex": "[0-9]{3}-[a-f]{2}"}, "[0-9]{3}-[a-f]{2}"), ({"grammar": 'start: ("a" | "bc")~2..3'}, "(a|bc){2,3}")],
    ids=["regex", "grammar"],
)
async def test_the_extensions_are_followed_too(api, fields, pattern):
    answer = accepted(await api.post(CHAT, messages=MESSAGES, max_tokens=40, **fields))
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert re.fullmatch(pattern, text_of(answer))


def nested(depth: int) -> str:
    return '{"type":"array","items":' * depth + '{"type":"null"}' + "}" * depth


INVALID: dict[str, dict[str, object] | str] = {
    "an open bracket": {"regex": "("},
    "an open class": {"regex": "[a"},
    "a billion times": {"regex": "a{1000000000}"},
    "a schema of 5 MB": {"response_format": response_format({"type": "string", "description": "x" * (5 << 20)})},
    "a schema nested 10,000 deep": nested(10_000),
    "a schema nested 150 deep": nested(150),
    "an enum of 100,000 texts": {"response_format": response_format({"enum": [f"text {i}" for i in range(100_000)]})},
    "nothing is allowed": {"response_format": response_format({"type": "integer", "minimum": 2, "maximum": 1})},
    "a grammar without end": {"grammar": 'start: "a" start'},
    "a grammar of itself": {"grammar": "start: start"},
}
UNUSUAL = {"stars in a star": {"regex": "(a*)*b"}, "stars 50 deep": {"regex": "(" * 50 + "a" + ")*" * 50 + "b"}}
"""Valid, though engines that go back over a text would never end with them."""


async def post(api: Api, fields: dict[str, object] | str) -> Any:
    asked = {"messages": MESSAGES, "max_tokens": 8, "temperature": 0}
    if isinstance(fields, dict):
        return await api.post(CHAT, **asked, **fields)
    body = json.dumps({"model": "smollm2", **asked, "response_format": response_format("HERE")})
    headers = {"content-type": "application/json"}
    return await api.client.post(CHAT, content=body.replace('"HERE"', fields), headers=headers)


async def test_what_cannot_be_compiled_is_refused_beside_a_stream_that_does_not_notice(api):
    story = {"prompt": "The harbour master wrote", "temperature": 0, "max_tokens": 300, "ignore_eos": True, **COMPARED}
    alone = await api.complete(**story)
    for _ in range(2):  # so that one runs all the time
        beside = asyncio.create_task(api.stream(COMPLETIONS, **story))
        await api.until(lambda ledger: ledger["requests"]["running"] > 0)
        for name, fields in INVALID.items():
            async with asyncio.timeout(20):
                answer = await post(api, fields)
            assert answer.status_code in (400, 413) or name == "a schema nested 150 deep", (
                f"{name}: {answer.text[:200]}"
            )
            assert len(answer.content) < 4096, name
        assert (await post(api, {})).status_code == 200
        assert_same_answer(await beside, alone)


@pytest.mark.parametrize("name", UNUSUAL)
async def test_an_expression_that_looks_like_trouble_is_followed_or_refused(api, name):
    async with asyncio.timeout(20):
        answer = await post(api, UNUSUAL[name])
    assert answer.status_code in (200, 400)
    if answer.status_code == 200 and answer.json()["choices"][0]["finish_reason"] == "stop":
        assert re.fullmatch("a*b", text_of(answer.json()))


# -- tools -------------------------------------------------------------------------------------------------------------

ARGUMENTS = {
    "city": {"type": "string", "maxLength": 16},
    "nights": {"type": "integer", "minimum": 1, "maximum": 30},
    "guest": an_object(name={"enum": ['Zoë "Z" 🦜', "O'Brien \\ 李"]}),
    "wishes": {"type": "array", "items": {"enum": ["sea 🌊", "quiet", 'a "view"']}, "minItems": 2, "maxItems": 3},
}
BOOK = {"type": "function", "function": {"name": "book_room", "parameters": an_object(**ARGUMENTS)}}
NOW = {"type": "function", "function": {"name": "now", "parameters": an_object()}}
MARKUP = ("<tool_call>", "</tool_call>")


def calls_of(events: list[Any]) -> list[dict[str, str]]:
    """The calls of a stream, joined by their index; checks the shape of each piece."""
    calls: list[dict[str, str]] = []
    for event in events[:-1]:
        for choice in event["choices"]:
            for piece in choice["delta"].get("tool_calls", ()):
                if piece["index"] == len(calls):
                    assert piece.keys() == {"index", "id", "type", "function"}
                    assert piece["type"] == "function"
                    calls.append({"id": piece["id"], "name": piece["function"]["name"], "arguments": ""})
                else:
                    assert piece["index"] == len(calls) - 1
                    assert piece.keys() == {"index", "function"}
                    assert piece["function"].keys() == {"arguments"}
                calls[-1]["arguments"] += piece["function"].get("arguments", "")
    assert len({call["id"] for call in calls}) == len(calls)
    return calls


def without_ids(calls: list[dict[str, Any]]) -> list[tuple[str, str]]:
    plain = [call.get("function", call) for call in calls]
    return [(call["name"], call["arguments"]) for call in plain]


NAMED = {"type": "function", "function": {"name": "book_room"}}


@pytest.mark.parametrize("choice", [NAMED, "required"], ids=["named", "required"])
@pytest.mark.parametrize("seed", [1, 2])
async def test_a_forced_call_is_the_same_plain_and_streamed(api, choice, seed):
    asked = {
        "messages": [{"role": "user", "content": "Book 3 nights in Paris."}],
        "tools": [BOOK] if choice == "required" else [BOOK, NOW],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "temperature": 0.8,
        "seed": seed,
        "max_tokens": 300,
    }
    await api.post(CHAT, **asked)  # the prompt is cached from here on
    plain, events = accepted(await api.post(CHAT, **asked)), await api.stream(CHAT, **asked)
    message = plain["choices"][0]["message"]
    assert without_ids(calls_of(events)) == without_ids(message["tool_calls"])
    (call,) = message["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert call["function"]["name"] == "book_room"
    assert arguments.keys() == ARGUMENTS.keys()
    assert arguments["guest"]["name"] in ARGUMENTS["guest"]["properties"]["name"]["enum"]
    assert plain["choices"][0]["finish_reason"] == end_of(events) == "tool_calls"
    assert message["content"] is None
    assert "".join(pieces_of(events)) == ""


async def test_a_call_without_arguments_and_one_that_is_cut(api):
    asked = {"messages": MESSAGES, "tools": [NOW, BOOK], "temperature": 0}
    choice = {"type": "function", "function": {"name": "now"}}
    events = await api.stream(CHAT, **asked, tool_choice=choice, max_tokens=60)
    assert [(name, json.loads(arguments)) for name, arguments in without_ids(calls_of(events))] == [("now", {})]
    for max_tokens in (1, 8, 20, 30):
        cut = {**asked, "tool_choice": NAMED, "max_tokens": max_tokens}
        plain, events = accepted(await api.post(CHAT, **cut)), await api.stream(CHAT, **cut)
        choice = plain["choices"][0]
        assert choice["finish_reason"] == end_of(events) == "length"
        assert without_ids(calls_of(events)) == without_ids(choice["message"].get("tool_calls") or [])
        assert not any(mark in (choice["message"]["content"] or "") for mark in MARKUP)
        assert not any(mark in "".join(pieces_of(events)) for mark in MARKUP)


async def test_several_calls_in_one_answer_are_told_apart(api):
    asked = {
        "messages": [{"role": "user", "content": "What time is it? Ask twice."}],
        "tools": [NOW],
        "tool_choice": "required",
        "temperature": 1,
        "max_tokens": 120,
    }
    counts = set()
    for seed in range(3):
        plain = accepted(await api.post(CHAT, **asked, seed=seed))
        calls = calls_of(await api.stream(CHAT, **asked, seed=seed))
        assert without_ids(calls) == without_ids(plain["choices"][0]["message"]["tool_calls"])
        counts.add(len(calls))
    assert max(counts) > 1, "no answer had several calls: this proves nothing"


async def test_without_a_choice_there_are_no_calls(api):
    asked = {"messages": MESSAGES, "tools": [NOW], "tool_choice": "none", "max_tokens": 20, "temperature": 0}
    plain = accepted(await api.post(CHAT, **asked))
    assert not plain["choices"][0]["message"].get("tool_calls")
    assert calls_of(await api.stream(CHAT, **asked)) == []
    assert plain["choices"][0]["finish_reason"] in ("stop", "length")
