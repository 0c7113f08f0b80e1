from __future__ import annotations

import json

import pytest
from pydantic import BaseModel

from ullage.base.errors import InvalidRequestError
from ullage.protocol.chat import ChatCompletionRequest
from ullage.protocol.json_text import MAX_JSON_MEMBERS, MAX_JSON_VALUES, encode_json, parse_json_object, validate


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{:",
        b'{"a":',
        b"[]",
        b'"text"',
        b"null",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b'{"a":"\\ud800"}',
        b'{"a":"\xed\xa0\x80"}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":' + b"9" * 5000 + b"}",
        b"{} {}",
    ],
)
def test_what_is_not_a_json_object_is_refused(body):
    with pytest.raises(InvalidRequestError):
        parse_json_object(body)


def test_json_that_can_not_be_written_is_a_bug():
    with pytest.raises(ValueError, match="JSON"):
        encode_json({"a": float("nan")})


def test_json_is_compact_utf8():
    assert encode_json({"a": "鳗鱼", "b": None}) == '{"a":"鳗鱼","b":null}'.encode()


def test_the_first_field_at_fault_is_the_param():
    with pytest.raises(InvalidRequestError) as caught:
        validate(ChatCompletionRequest, {"model": "m", "messages": [{"role": "wizard", "content": "hi"}]})
    assert caught.value.param == "messages[0].role"
    assert "wizard" not in caught.value.message


def test_many_errors_make_a_short_message_without_the_input():
    messages = [{"role": "user", "content": 7, "x" * 1000: "secret"}] * 4_000
    with pytest.raises(InvalidRequestError) as caught:
        validate(ChatCompletionRequest, {"model": "m", "messages": messages})
    assert "and 3997 more" in caught.value.message
    assert len(caught.value.message) < 500
    assert "secret" not in caught.value.message


def test_keys_of_the_client_are_cut_short_in_the_param():
    class Scores(BaseModel):
        scores: dict[str, int]

    with pytest.raises(InvalidRequestError) as caught:
        validate(Scores, {"scores": {"k" * 9000: "x"}})
    assert caught.value.param == "scores." + "k" * 50


@pytest.mark.parametrize("values", [b"[1" + b",1" * MAX_JSON_VALUES + b"]", b"[" * MAX_JSON_VALUES + b'{"a":'])
def test_more_values_than_can_be_parsed_in_a_moment_are_refused(values):
    with pytest.raises(InvalidRequestError, match="more than 262144 JSON values"):
        parse_json_object(b'{"prompt":' + values + b"}")


@pytest.mark.parametrize("key", ['"k%d":1', '"k%d" :1', '"k%d\\\\"\t:1'])
def test_more_members_than_can_be_parsed_in_a_moment_are_refused(key):
    at_most = ",".join(key % i for i in range(MAX_JSON_MEMBERS))
    assert len(parse_json_object(b"{" + at_most.encode() + b"}")) == MAX_JSON_MEMBERS
    with pytest.raises(InvalidRequestError, match="more than 32768 members"):
        parse_json_object(b'{"a":0,' + at_most.encode() + b"}")


def test_colons_in_a_text_are_no_members():
    text = json.dumps({"a": 1, "b": "12:34:56"}) * MAX_JSON_MEMBERS
    assert parse_json_object(json.dumps({"prompt": text}).encode()) == {"prompt": text}
