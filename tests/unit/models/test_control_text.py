from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.models.control_text import MARK, ControlText, unescape

NAMES = ["<|im_end|>", "<|im_start|>", "<s>", "</s>", "s>b"]
CONTROL_TEXT = ControlText(NAMES)
TEXTS = st.lists(st.sampled_from([*NAMES, "<", "|", "im_", "end", "s", ">", "b", " ", "\n", "é", "\ufdd0", MARK])).map(
    "".join
)


@given(TEXTS)
@settings(deadline=None)
def test_no_name_is_left_and_nothing_is_lost(text):
    escaped = CONTROL_TEXT.escape(text)
    assert not any(name in escaped for name in NAMES)
    assert unescape(escaped) == text


@given(TEXTS, st.sampled_from(NAMES), st.integers(1, 9), st.sampled_from([str, str.strip]))
@settings(deadline=None)
def test_what_stands_beside_it_completes_no_name(text, name, cut, trim):
    escaped = trim(CONTROL_TEXT.escape(text))
    for whole in (name[:cut] + escaped, escaped + name[cut:]):
        assert not any(other in whole for other in NAMES if other not in (name[:cut], name[cut:]))


@pytest.mark.parametrize("text", ["", "plain", "a < b", "<b>bold</b>", "  padded\n", "1 << 2 | 3", "中文 😀"])
def test_ordinary_text_is_left_alone(text):
    assert ControlText(["<|im_end|>", "<|im_start|>"]).escape(text) == text


def test_overlapping_names_are_broken_both():
    assert unescape(ControlText(["<a>", "a>b"]).escape("<a>b")) == "<a>b"
    assert "a>b" not in ControlText(["<a>", "a>b"]).escape("<a>b")


def test_without_control_tokens_there_is_nothing_to_break():
    assert ControlText([]).escape("<s>") == "<s>"
