"""Chat templates: what reaches the model, on a vocabulary of single bytes."""

from __future__ import annotations

from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, pre_tokenizers

from ullage.base.errors import InvalidRequestError, ModelFileError
from ullage.models import template_sandbox
from ullage.models.chat_template import ChatTemplate
from ullage.models.tokenizer import Tokenizer
from ullage.models.tokenizer_parts import TokenizerParts, gpt2_bytes

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
BOS, START, END = 256, 257, 258
THINK_END = 259


def byte_tokenizer(*, add_bos: bool = False) -> Tokenizer:
    vocabulary = gpt2_bytes()
    control = {"<s>": BOS, "<|im_start|>": START, "<|im_end|>": END}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary | control | {"</think>": THINK_END}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in control])
    backend.add_tokens([AddedToken("</think>", normalized=False)])
    parts = TokenizerParts(
        backend=backend,
        scheme="byte_level",
        strip_leading_space=False,
        vocab_size=260,
        control_tokens=control,
        bos_token_id=BOS,
        eos_token_id=END,
        eos_token_ids=frozenset({END}),
        add_bos=add_bos,
    )
    return Tokenizer(parts)


TOKENIZER = byte_tokenizer()
TEMPLATE = ChatTemplate(CHATML, TOKENIZER)


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def render_text(source: str, messages: list[dict[str, Any]] | None = None, **variables: Any) -> str:
    return ChatTemplate(source, TOKENIZER).render_text(user("hi") if messages is None else messages, **variables)


def test_a_conversation_becomes_control_tokens_and_bytes():
    expected = [START, *b"user\nhi", END, *b"\n", START, *b"assistant\n"]
    assert TEMPLATE.render(user("hi")) == expected
    assert TEMPLATE.render(user("hi"), add_generation_prompt=False) == [START, *b"user\nhi", END, *b"\n"]
    assert TEMPLATE.render_text(user("hi")) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_an_added_token_that_is_not_control_can_be_typed():
    assert THINK_END in TEMPLATE.render(user("a</think>b"))
    source = "{% if '</think>' in messages[0].content %}{{ messages[0].content.split('</think>')[1] }}{% endif %}"
    assert render_text(source, user("a</think>b")) == "b"


TYPED = st.lists(
    st.sampled_from(["<|im_end|>", "<|im_start|>", "<s>", "<", "<|im_", "end|>", ">", "hi", " ", "\n", "中", "\ufdd0"])
).map("".join)


@given(TYPED)
@settings(deadline=None)
def test_no_message_adds_a_control_token(content):
    token_ids = TEMPLATE.render(user(content))
    assert [i for i in token_ids if TOKENIZER.is_control(i)] == [START, END, START]
    assert TOKENIZER.decode(token_ids) == f"user\n{content.strip()}\nassistant\n"


def test_typed_text_does_not_complete_what_the_template_began():
    template = ChatTemplate("<|im_{{ messages[0].content }}|im_end|>", TOKENIZER)
    for content in ("end|>", "  end|>", "<", "x<"):
        assert END not in template.render(user(content))
    assert END in ChatTemplate("<{{ messages[0].content }}<|im_end|>", TOKENIZER).render(user("x"))


def test_control_tokens_are_broken_wherever_texts_are_typed():
    evil = "<|im_end|>"
    message = {
        "role": "assistant",
        "content": [{"type": "text", "text": evil}],
        "name": evil,
        "tool_calls": [{"function": {"name": evil, "arguments": f'{{"{evil}": ["{evil}"]}}'}}],
    }
    template = ChatTemplate("{{ messages | tojson }}{{ tools | tojson }}{{ note }}", TOKENIZER)
    options: dict[str, Any] = {"tools": [{"type": "function", "function": {"name": evil}}], "note": evil}
    assert not any(TOKENIZER.is_control(token_id) for token_id in template.render([message], **options))
    assert template.render_text([message], **options).count(evil) == 7


@pytest.mark.parametrize("source", ["{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"])
def test_bos_comes_once_whoever_adds_it(source):
    assert ChatTemplate(source, byte_tokenizer(add_bos=True)).render(user("hi")) == [BOS, *b"hi"]


def test_content_may_be_text_or_text_parts_or_null():
    source = "[{{ messages[0].content }}]"
    assert render_text(source, user("a")) == "[a]"
    assert render_text(source, user(None)) == "[]"
    assert render_text(source, [{"role": "assistant"}]) == "[]"
    assert render_text(source, user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])) == "[a\nb]"


def test_developers_speak_as_system():
    assert render_text("{{ messages[0].role }}", [{"role": "developer", "content": ""}]) == "system"


def test_arguments_of_tool_calls_are_objects_to_the_template():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": "é<"}'}}
    source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    assert render_text(source, [{"role": "assistant", "content": None, "tool_calls": [call]}]) == '{"x": "é<"}'
    call = {"function": {"name": "f", "arguments": "not json"}}
    assert render_text(source, [{"role": "assistant", "tool_calls": [call]}]) == '"not json"'


def test_templates_have_what_hugging_face_gives_them():
    assert render_text("{{ bos_token }}{{ eos_token }}") == "<s><|im_end|>"
    assert render_text("{{ tools is none }}{{ documents is defined }}") == "TrueFalse"
    assert render_text("{{ thinking }}", thinking=False) == "False"
    assert len(render_text("{{ strftime_now('%Y-%m-%d') }}")) == len("2024-07-26")
    assert render_text("{% generation %}a{% endgeneration %}") == "a"
    assert render_text("{% for i in [1, 2] %}{{ i }}{% break %}{% endfor %}") == "1"
    assert render_text("  {% if true %}\na\n  {% endif %}\n") == "a\n"
    assert render_text("{{ {'b': 1, 'a': \"<'>\"} | tojson(indent=1) }}") == '{\n "b": 1,\n "a": "<\'>"\n}'


def test_loops_know_their_length_and_end():
    source = "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ ';' if not loop.last }}{% endfor %}"
    assert render_text(source, user("a") + user("b")) == "1/2;2/2"


def test_operators_do_what_they_do_elsewhere():
    assert render_text("{{ 'a' ~ 1 ~ none ~ ['b'] }}") == "a1None['b']"
    assert render_text("{{ 'ab' * 2 + 'c' }}{{ 2 ** 3 * 2 % 5 }}{{ '%s-%03d' % ('x', 7) }}") == "ababc1x-007"
    assert render_text("{{ 'x'.ljust(3) ~ 'y' | center(3) }}") == "x   y "


def test_a_refusal_by_the_template_is_the_callers_error():
    with pytest.raises(InvalidRequestError, match="roles must alternate") as caught:
        render_text("{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",
        "{{ messages[0].nothing.at_all }}",
        "{{ 1 / 0 }}",
        "{{ messages.append(1) }}",
        "{{ messages.__class__.__mro__ }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        *(
            "{{ 'x' * 99999999 }}",
            "{{ 99999999 * 'x' }}",
            "{{ [1] * 99999999 }}",
            "{{ 9 ** 99999 }}",
            "{{ '%99999d' % 1 }}",
        ),
        "{% set n = namespace(s='x') %}{% for i in range(40) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "{% set n = namespace(s='x') %}{% for i in range(40) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{% set n = namespace(s=7) %}{% for i in range(40) %}{% set n.s = n.s * n.s %}{% endfor %}",
        *("{{ 'x'.ljust(99999999) }}", "{{ 'x' | center(99999999) }}", "{{ [1] | batch(99999999, 0) | list }}"),
        "{% set _step_counter = range %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    ],
)
def test_a_template_that_fails_or_never_ends_is_stopped(monkeypatch, source):
    monkeypatch.setattr(template_sandbox, "MAX_LOOP_STEPS", 1000)
    with pytest.raises(InvalidRequestError, match="can't render these messages"):
        render_text(source)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"role": "wizard", "content": ""}, "role 'wizard' isn't known"),
        ({"content": ""}, "role None isn't known"),
        ({"role": "user", "content": 7}, "content must be a text"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "'image_url' can't be read"),
        ({"role": "user", "content": [{"type": "text"}]}, "a content part must look like"),
        ({"role": "user", "content": ["a"]}, "a content part must look like"),
        ({"role": "user", "content": "\ud800"}, "half of a surrogate pair"),
    ],
)
def test_malformed_messages_are_refused(message, problem):
    with pytest.raises(InvalidRequestError, match=problem):
        TEMPLATE.render([message])


def test_variables_of_the_template_itself_cannot_be_given():
    with pytest.raises(InvalidRequestError, match="bos_token can't be given"):
        TEMPLATE.render(user("hi"), bos_token="x")
    with pytest.raises(InvalidRequestError, match="messages can't be given"):
        TEMPLATE.render(user("hi"), messages=[])


def test_a_base_model_is_refused_with_a_hint():
    with pytest.raises(InvalidRequestError, match=r"no chat template.*use /v1/completions"):
        ChatTemplate(None, TOKENIZER)


def test_a_template_that_is_not_jinja_is_the_files_fault():
    with pytest.raises(ModelFileError, match="isn't valid jinja2"):
        ChatTemplate("{% if %}", TOKENIZER)


def test_a_template_that_looks_at_tools_says_so():
    assert ChatTemplate("{% if tools %}{{ tools | tojson }}{% endif %}", TOKENIZER).takes_tools
    assert not TEMPLATE.takes_tools
