"""Texts through the real models' tokenizers and back, as a client sees it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.http_server import app_client
from tests.scripted_engine import ScriptedEngine, scripted_model

from ullage.models.open_model import open_model

TEXTS = [
    *(
        "",
        "hi",
        " leading space",
        "  two",
        "trailing ",
        "\n\n\ttabs\r\n",
        "naïve café",
        "日本語テキスト",
        "🙂👩‍👩‍👧",
        "e\u0301",
    ),
    *("<|im_start|>user", "<bos>hi<eos>", "a\u00a0b", "def f(x):\n    return x ** 2", "0123456789 3.14"),
]


@pytest.mark.parametrize("name", ["smollm2", "gemma3-270m"])
async def test_tokens_become_the_text_again(name: str, model_path: Callable[[str], Path]) -> None:
    rng = random.Random(1)
    alphabet = "ab  \n\t.,'\"{}<|>_éß日本🙂\u0301"
    texts = TEXTS + ["".join(rng.choices(alphabet, k=rng.randint(1, 40))) for _ in range(200)]
    file = open_model(model_path(name))
    try:
        model = replace(scripted_model(), tokenizer=file.tokenizer())
        engine = ScriptedEngine()
        engine.max_model_len = 1000
        async with app_client(engine, model) as client:
            for text in texts:
                for special in (True, False):
                    fields = {"prompt": text, "add_special_tokens": special, "return_token_strs": True}
                    tokens = (await client.post("/tokenize", json=fields)).json()
                    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"])
                    back = (await client.post("/detokenize", json={"tokens": tokens["tokens"]})).json()
                    assert back == {"prompt": text}
    finally:
        file.close()
