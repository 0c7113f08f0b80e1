"""LOG: log-probabilities join to the text's own bytes, and are numbers whatever was asked for."""

from __future__ import annotations

import math

import pytest
from tests.e2e.cases.test_streaming import EELS, PARROTS
from tests.openai_api import CHAT, accepted, text_of

REPLACEMENT = list("\ufffd".encode())
ASK = [{"role": "user", "content": f"Repeat this line: {PARROTS} {EELS}"}]


def entries_of(answer: dict) -> list[dict]:
    return answer["choices"][0]["logprobs"]["content"]


@pytest.mark.parametrize("content", [ASK, [{"role": "user", "content": PARROTS}], [{"role": "user", "content": EELS}]])
async def test_the_bytes_of_all_entries_are_the_texts_own(api, content):
    cut = False
    for max_tokens in (22, 23, 24):
        answer = await api.chat(content, temperature=0, logprobs=True, top_logprobs=5, max_tokens=max_tokens)
        entries = entries_of(answer)
        joined = b"".join(bytes(entry["bytes"]) for entry in entries)
        assert joined.decode("utf-8", errors="replace") == text_of(answer)
        assert all(entry["bytes"] != REPLACEMENT for entry in entries)
        for entry in entries:
            assert len(entry["top_logprobs"]) == 5
            assert all(top["bytes"] != REPLACEMENT for top in entry["top_logprobs"])
            cut |= any(b > 0x7F for b in entry["bytes"]) and "bytes:" in entry["token"]
    assert cut, "no token held a part of a character: this proves nothing"


@pytest.mark.parametrize("prompt", [PARROTS, EELS])
async def test_parts_of_characters_are_told_apart_in_completions(api, prompt):
    answer = await api.complete(prompt, temperature=0, logprobs=5, max_tokens=24)
    logprobs = answer["choices"][0]["logprobs"]
    parts = [token for token in logprobs["tokens"] if token.startswith("bytes:")]
    assert parts
    data = b"".join(_bytes(token) for token in logprobs["tokens"])
    assert data.decode("utf-8", errors="replace") == text_of(answer)
    assert all(len(top) in (5, 6) for top in logprobs["top_logprobs"])


def _bytes(token: str) -> bytes:
    if token.startswith("bytes:"):
        return bytes.fromhex(token.removeprefix("bytes:").replace("\\x", ""))
    return token.encode()


async def test_log_probabilities_are_numbers_however_unlikely(api):
    """They are the model's own: before temperature, bias and mask."""
    base = {"messages": ASK, "max_tokens": 8, "logprobs": True, "top_logprobs": 20}
    await api.post(CHAT, **base)  # the prompt is cached from here on: all begin alike
    banned = {str(token_id): -100 for token_id in await ten_likeliest(api)}
    plain, cold, biased, grammar, regex = [
        accepted(await api.post(CHAT, **base, **fields))
        for fields in (
            {"temperature": 0},
            {"temperature": 0.0001},
            {"temperature": 0, "logit_bias": banned},
            {"temperature": 0.0001, "grammar": 'start: "Yes"'},
            {"temperature": 0.0001, "regex": "Y"},
        )
    ]
    for answer in (plain, cold, biased, grammar, regex):
        entries = entries_of(answer)
        values = [entry["logprob"] for entry in entries]
        values += [top["logprob"] for entry in entries for top in entry["top_logprobs"]]
        assert all(math.isfinite(value) and -9999.0 <= value <= 0 for value in values)
        assert all(len(entry["top_logprobs"]) == 20 for entry in entries)
        assert entries[0]["top_logprobs"] == entries_of(plain)[0]["top_logprobs"]
    assert (text_of(grammar), text_of(regex)) == ("Yes", "Y")
    assert entries_of(biased)[0]["token"] not in [top["token"] for top in entries_of(plain)[0]["top_logprobs"][:10]]


async def ten_likeliest(api) -> list[int]:
    """First tokens of the answer: each the best once those before it are banned."""
    found: list[int] = []
    fields = {"messages": ASK, "max_tokens": 1, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
    for _ in range(10):
        answer = await api.post(CHAT, **fields, logit_bias={str(token_id): -100 for token_id in found})
        found += accepted(answer)["choices"][0]["token_ids"]
    return found
