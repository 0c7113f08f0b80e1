"""The demo models' own tokenizers against what Hugging Face transformers made of the same texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ullage.models.chat_template import ChatTemplate
from ullage.models.model_file import ModelFile
from ullage.models.open_model import open_model

REFERENCES = {"smollm2": "smollm2-135m-instruct-q4_1.json", "gemma3-270m": "gemma-3-270m-q4_k_m.json"}


@pytest.fixture(scope="module", params=REFERENCES)
def model_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(model_name: str, model_path: Callable[[str], Path]) -> ModelFile:
    model = open_model(model_path(model_name))
    model.close()  # what a tokenizer is made of was read on opening
    return model


def test_texts_become_the_reference_tokens(model_name, model):
    tokenizer = model.tokenizer()
    reference = json.loads((Path(__file__).parent / "reference" / REFERENCES[model_name]).read_text("utf-8"))
    assert len(reference) >= 4
    for entry in reference:
        encode = tokenizer.encode if entry["kind"] == "raw" else tokenizer.encode_rendered
        assert list(encode(entry["prompt"])) == entry["prompt_ids"], entry["prompt"]


def test_a_conversation_becomes_the_reference_tokens(model_path):
    model = open_model(model_path("smollm2"))
    template = ChatTemplate(model.chat_template(), model.tokenizer())
    model.close()
    reference = json.loads((Path(__file__).parent / "reference" / REFERENCES["smollm2"]).read_text("utf-8"))
    by_prompt = {entry["prompt"]: entry["prompt_ids"] for entry in reference}
    for messages in (
        [{"role": "user", "content": "Write a haiku about the sea."}],
        [
            {"role": "system", "content": "You are a terse calculator."},
            {"role": "user", "content": "What is 17 + 25?"},
        ],
    ):
        assert list(template.render(messages)) == by_prompt[template.render_text(messages)]
