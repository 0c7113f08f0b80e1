"""GGU-03: token ids are those of the published tokenizer, and come back as the same text."""

from __future__ import annotations

import random

import pytest
from tests.openai_api import CHAT, accepted
from tests.plain_bpe import PlainBPE

START_OF_TURN, END_OF_TURN = 1, 2
DEFAULT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
RANDOM = random.Random(3).randbytes(10_000).decode("utf-8", errors="replace")
"""In three texts: together they are more than the server's context."""
TEXTS = {
    "digits": "12345 and 3.14159",
    "spaces": "  two spaces",
    "white space": "tab\tnew\r\nline",
    "scripts": "Ünïcödé 日本語 한국어",
    "emoji": "🫠👨‍👩‍👧",
    "contraction": "don't",
    **{f"random bytes {part}": RANDOM[part::3] for part in range(3)},
    "other digits": "٣٤ ½ Ⅷ x²y",
    "long white space": "a    b \n\n\n c  ",
}


@pytest.fixture(scope="module")
def bpe(smollm2) -> PlainBPE:
    return PlainBPE(smollm2)


@pytest.mark.parametrize("name", TEXTS)
async def test_a_text_has_the_published_tokens_and_comes_back(api, bpe, name):
    text = TEXTS[name]
    ids = accepted(await api.post("/tokenize", prompt=text))["tokens"]
    assert ids == bpe.encode(text)
    back = accepted(await api.post("/detokenize", tokens=ids))["prompt"]
    kept = bytes(byte for byte in text.encode() if byte not in bpe.missing).decode("utf-8", errors="replace")
    assert back == kept
    assert kept == text or "random" in name
    if "random" not in name:
        answer = await api.complete(text, max_tokens=1, return_token_ids=True)
        assert answer["choices"][0]["prompt_token_ids"] == ids
        assert answer["usage"]["prompt_tokens"] == len(ids)


def test_what_the_vocabulary_leaves_out_are_a_few_control_characters(bpe):
    assert bpe.missing <= {*range(32), 127, *range(0xC0, 0x100)} - {*b"\t\n\r"}


async def test_a_chat_has_the_control_tokens_of_the_template_and_no_others(api, bpe):
    messages = [{"role": "user", "content": "What is 17 + 25?"}, {"role": "assistant", "content": "42"}]
    messages.append({"role": "user", "content": TEXTS["scripts"]})
    expected = []
    for role, content in [("system", DEFAULT_SYSTEM), *((m["role"], m["content"]) for m in messages)]:
        expected += [START_OF_TURN, *bpe.encode(f"{role}\n{content}"), END_OF_TURN, *bpe.encode("\n")]
    expected += [START_OF_TURN, *bpe.encode("assistant\n")]
    answer = accepted(await api.post(CHAT, messages=messages, max_tokens=1, return_token_ids=True))
    assert answer["prompt_token_ids"] == expected
    assert answer["usage"]["prompt_tokens"] == len(expected)
