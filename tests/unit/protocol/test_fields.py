from __future__ import annotations

import pytest

from ullage.base.errors import InvalidRequestError
from ullage.protocol.chat import ChatCompletionRequest
from ullage.protocol.completions import CompletionRequest
from ullage.protocol.fields import FIELD_RULES, check_extra_fields, ignored_fields_header


@pytest.mark.parametrize("name", [name for name, rule in FIELD_RULES.items() if rule.rule == "refused"])
def test_a_field_that_would_change_the_answer_is_refused_by_name(name):
    with pytest.raises(InvalidRequestError) as caught:
        check_extra_fields({name: "anything else"})
    assert caught.value.param == name
    assert name in caught.value.message


@pytest.mark.parametrize("name", FIELD_RULES)
def test_null_is_the_same_as_absent(name):
    assert check_extra_fields({name: None}) == ()


@pytest.mark.parametrize("name", FIELD_RULES)
def test_values_that_ask_for_nothing_are_accepted(name):
    for value in FIELD_RULES[name].neutral:
        assert check_extra_fields({name: value}) == ()


def test_zero_is_not_false():
    with pytest.raises(InvalidRequestError, match="allowed: false"):
        check_extra_fields({"use_beam_search": 0})


def test_book_keeping_is_accepted_without_a_word():
    assert check_extra_fields({"store": True, "service_tier": "flex", "metadata": {"a": "b"}}) == ()


def test_hints_and_unknown_fields_are_accepted_and_reported():
    assert check_extra_fields({"user": "me", "verbosity": "low", "fooo": 1}) == ("verbosity", "fooo")


def test_the_header_stays_printable_and_short():
    header = ignored_fields_header(["a,b\r\nset-cookie: c", "鱼", "x" * 1000, *map(str, range(100))])
    assert header.isascii()
    assert header.isprintable()
    assert header.endswith("and 83 more")
    assert len(header) < 500


@pytest.mark.parametrize("name", ["x ", " ", ",", "", "\ud800", "a,b"])
def test_no_name_can_end_the_header_or_pass_for_two(name):
    header = ignored_fields_header(["first", name])
    assert header.strip() == header
    assert header.count(", ") == 1
    assert header.isascii()


def test_no_field_is_both_honoured_and_not():
    honoured = set(ChatCompletionRequest.model_fields) | set(CompletionRequest.model_fields)
    assert not honoured & set(FIELD_RULES)
