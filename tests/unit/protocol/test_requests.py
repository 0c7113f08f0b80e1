from __future__ import annotations

import pytest

from ullage.base.errors import InvalidRequestError
from ullage.protocol.chat import ChatCompletionRequest
from ullage.protocol.completions import CompletionRequest
from ullage.protocol.json_text import validate


def chat(**fields: object) -> ChatCompletionRequest:
    messages = [{"role": "user", "content": "hi"}]
    return validate(ChatCompletionRequest, {"model": "m", "messages": messages, **fields})


def completion(**fields: object) -> CompletionRequest:
    return validate(CompletionRequest, {"model": "m", "prompt": "hi", **fields})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stream", "false"),
        ("max_tokens", "10"),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("max_tokens", 99999999999999999999),
        ("max_tokens", 0),
        ("n", 0),
        ("n", -1),
        ("n", 129),
        ("n", 1_000_000_000),
        ("messages", "hi"),
        ("messages", []),
        ("stop", 5),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("top_logprobs", True),
        ("top_logprobs", 21),
        ("top_logprobs", 2),
        ("logit_bias", []),
        ("seed", "x"),
        ("seed", 2**63),
        ("model", 7),
        ("stream_options", 3),
        ("stream_options", {}),
        ("temperature", float("inf")),
        ("temperature", 10**400),
        ("top_p", -1),
        ("top_p", 1.5),
        ("presence_penalty", "1"),
        ("cache_salt", ""),
        ("stop_token_ids", [1.0]),
        ("stop", ["x" * 1025]),
        ("stop", "x" * 1025),
        ("logit_bias", dict.fromkeys(map(str, range(1025)), 1)),
        ("logit_bias", {"x": 1}),
        ("messages", [{"role": "user", "content": "hi"}] * 4097),
    ],
)
def test_a_wrong_type_or_range_names_the_field(field, value):
    with pytest.raises(InvalidRequestError) as caught:
        chat(**{field: value})
    assert (caught.value.param or "").partition("[")[0] == field


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (1, "messages[0]"),
        ({"role": 5}, "messages[0].role"),
        ({"content": "hi"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "tool", "content": "4"}, "messages[0].tool_call_id"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "text", "text": ""}] * 1025}, "messages[0].content"),
        ({"role": "user", "content": [1] * 1000}, "messages[0].content[0]"),
        ({"role": "assistant", "tool_calls": [{"id": 1}]}, "messages[0].tool_calls[0].id"),
    ],
)
def test_a_wrong_message_is_named_by_its_path(message, param):
    with pytest.raises(InvalidRequestError) as caught:
        chat(messages=[message])
    assert caught.value.param == param


def test_null_means_absent_for_every_optional_field():
    required = {"model", "messages", "prompt"}
    for cls, minimal in ((ChatCompletionRequest, chat()), (CompletionRequest, completion())):
        nulls = dict.fromkeys(set(cls.model_fields) - required)
        assert validate(cls, {**minimal.model_dump(include=required), **nulls}) == minimal


def test_both_names_of_max_tokens_may_agree_but_not_differ():
    assert chat(max_tokens=5, max_completion_tokens=5).asked_max_tokens == 5
    assert chat(max_completion_tokens=7).asked_max_tokens == 7
    with pytest.raises(InvalidRequestError):
        chat(max_tokens=5, max_completion_tokens=6)


def test_the_template_gets_what_is_there_and_nothing_else():
    part = {"type": "text", "text": "a"}
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{"}}
    fields = chat(
        messages=[
            {"role": "user", "content": "a", "name": "ann", "mood": "good"},
            {"role": "user", "content": [part, part]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "a", "tool_call_id": "c1"},
        ]
    )
    assert [message.for_template() for message in fields.messages] == [
        {"role": "user", "content": [part], "name": "ann"},
        {"role": "user", "content": [part, part]},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": [part], "tool_call_id": "c1"},
    ]


def test_unknown_fields_are_kept_with_their_path():
    fields = chat(
        fooo=1,
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False, "continuous_usage_stats": True},
        messages=[{"role": "user", "content": "hi", "refusal": None, "annotations": [], "mood": "good"}],
    )
    assert fields.extra_fields() == {
        "fooo": 1,
        "stream_options.continuous_usage_stats": True,
        "messages[].mood": "good",
    }


def test_what_is_bounded_may_reach_its_bound():
    biases = {str(token_id): 1.0 for token_id in range(1024)}
    fields = chat(stop="x" * 1024, logit_bias=biases, messages=[{"role": "user", "content": ""}] * 4096)
    assert fields.logit_bias == dict.fromkeys(range(1024), 1.0)


@pytest.mark.parametrize("stop", [None, []])
def test_no_stop_text_and_an_empty_list_are_the_same(stop):
    assert not chat(stop=stop).stop


def test_one_stop_text_is_a_list_of_one():
    assert chat(stop="end").stop == ["end"]


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("hi", ["hi"]),
        ("", [""]),
        ([1, 2], [[1, 2]]),
        (["a", "b"], ["a", "b"]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_every_form_of_prompt_becomes_a_list_of_prompts(prompt, prompts):
    assert completion(prompt=prompt).prompt == prompts


@pytest.mark.parametrize("prompt", [None, [], [[]], [1, "a"], [1.0], [True], {"text": "a"}, 5])
def test_other_forms_of_prompt_are_refused(prompt):
    with pytest.raises(InvalidRequestError) as caught:
        completion(prompt=prompt)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"best_of": 21}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1, "echo": True}, "max_tokens"),
        ({"prompt": ["a"] * 7, "best_of": 20}, "prompt"),
        ({"echo": True, "logprobs": 0}, "echo"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"prompt": ["a", "b"], "n": 65}, "prompt"),
    ],
)
def test_completions_refuse_what_they_can_not_do(fields, param):
    with pytest.raises(InvalidRequestError) as caught:
        completion(**fields)
    assert caught.value.param == param


def test_best_of_may_equal_n_and_be_streamed_then():
    assert completion(n=2, best_of=2, stream=True).num_choices == 2


def test_to_tell_the_best_log_probabilities_are_needed():
    assert completion(best_of=2).asked_num_logprobs == 0
    assert completion(best_of=2, logprobs=3).asked_num_logprobs == 3
    assert completion(n=2, best_of=2).asked_num_logprobs is None
