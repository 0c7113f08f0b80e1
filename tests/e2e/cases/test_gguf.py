"""GGU: the weights of a file mean what they should, and a damaged file is told before the port opens."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from tests.gguf_copies import PlainLlama, copy_gguf
from tests.openai_api import api_of, text_of
from tests.ullage_server import UllageServer, refused_start, ullage_server

NUM_TOKENS = 32
PROMPT_LENGTHS = (1, 2, 50, 1000)
CLOSE_CALL_NATS = 0.15
LEAST_COSINE = {"F16": 0.999, "Q8_0": 0.99}
TEXT = Path(__file__).parents[3].joinpath("README.md").read_text("utf-8")


@dataclass(frozen=True)
class ServedCopy:
    kind: str
    model: Path
    server: UllageServer


@pytest.fixture(scope="module", params=LEAST_COSINE)
def copy(request, smollm2) -> Iterator[ServedCopy]:
    with tempfile.TemporaryDirectory() as folder:
        model = copy_gguf(smollm2, Path(folder) / "copy.gguf", GGMLQuantizationType[request.param])
        flags = ("--max-model-len=2048", "--kv-memory=64MiB")
        with ullage_server(model, Path(folder) / "log", *flags) as server:
            yield ServedCopy(request.param, model, server)


async def test_scores_and_greedy_tokens_are_those_of_a_plain_forward_pass(copy):
    plain = PlainLlama(copy.model)
    async with api_of(copy.server.url) as api:
        long_prompt = (await api.complete(TEXT[:4000], max_tokens=1, return_token_ids=True))["choices"][0]
        token_ids = long_prompt["prompt_token_ids"]
        assert len(token_ids) >= max(PROMPT_LENGTHS)
        for length in PROMPT_LENGTHS:
            fields = {"max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
            choice = (await api.complete(token_ids[:length], logprobs=5, **fields))["choices"][0]
            expected = plain.logprobs(token_ids[:length] + choice["token_ids"][:-1], NUM_TOKENS)
            ours, theirs = [], []
            five_best = choice["logprobs"]["top_logprobs"]
            for token_id, scores, best in zip(choice["token_ids"], expected, five_best, strict=True):
                assert scores.max() - scores[token_id] <= CLOSE_CALL_NATS, f"{length} tokens of prompt"
                named = {plain.token_name(int(i)): float(scores[i]) for i in np.argsort(-scores)[:20]}
                ours += list(best.values())
                theirs += [named[name] for name in best]
            cosine = np.dot(ours, theirs) / np.linalg.norm(ours) / np.linalg.norm(theirs)
            assert cosine >= LEAST_COSINE[copy.kind], f"{length} tokens of prompt"


async def test_a_shared_embedding_is_the_output_matrix_whatever_its_type(copy):
    async with api_of(copy.server.url) as api:
        assert "Paris" in text_of(await api.complete("The capital of France is", max_tokens=8, temperature=0))


@pytest.mark.parametrize(
    ("name", "says", "begin"),
    [
        ("smollm2", " Paris.", None),
        ("gemma3-270m", " the capital of the country", 2),
    ],
    ids=["Q4_1", "Q4_K_M"],
)
async def test_that_holds_for_files_as_they_are_given_out(model_path, tmp_path, name, says, begin):
    with ullage_server(model_path(name), tmp_path / "log", "--max-model-len=512", "--kv-memory=32MiB") as server:
        assert "the embedding is also the output matrix" in " ".join(server.log().replace("│", " ").split())
        async with api_of(server.url) as api:
            said = text_of(await api.complete("The capital of France is", max_tokens=8, temperature=0))
            assert said.startswith(says)
            ids = (await api.complete("12 a", max_tokens=1, return_token_ids=True))["choices"][0]["prompt_token_ids"]
            assert ids.count(begin) == 1 if begin is not None else len(ids) == 3


def cut_in_half(data: bytearray) -> None:
    del data[len(data) // 2 :]


def cut_in_its_header(data: bytearray) -> None:
    del data[100_000:]


def other_magic(data: bytearray) -> None:
    data[:4] = data[:4][::-1]


def other_shape(data: bytearray) -> None:
    """The first layer's queries get twice their columns."""
    name = b"blk.0.attn_q.weight"
    start = data.index(name) + len(name) + 4
    (columns,) = struct.unpack_from("<Q", data, start)
    struct.pack_into("<Q", data, start, columns * 2)


def huge_shape(data: bytearray) -> None:
    name = b"blk.0.attn_q.weight"
    struct.pack_into("<Q", data, data.index(name) + len(name) + 4, 1 << 60)


def offset_beyond_the_end(data: bytearray) -> None:
    name = b"output_norm.weight"
    struct.pack_into("<Q", data, data.index(name) + len(name) + 4 + 8 + 4, len(data) * 2 // 32 * 32)


@pytest.mark.parametrize(
    "damage",
    [cut_in_half, cut_in_its_header, other_magic, other_shape, huge_shape, offset_beyond_the_end],
    ids=lambda damage: damage.__name__,
)
def test_a_damaged_file_is_told_before_the_port_opens(smollm2, tmp_path, damage):
    data = bytearray(smollm2.read_bytes())
    damage(data)
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(data)
    code, words = refused_start(damaged)
    damaged.unlink()
    assert code == 2
    assert words.startswith("error: ")
    assert "Traceback" not in words
    assert "serving on" not in words
    assert str(damaged) in words


def test_an_unknown_tensor_is_a_warning(smollm2, tmp_path):
    with tempfile.TemporaryDirectory() as folder:
        extra = {"blk.0.surprise.weight": np.ones((4, 4), np.float32)}
        model = copy_gguf(smollm2, Path(folder) / "copy.gguf", extra_tensors=extra)
        with ullage_server(model, tmp_path / "log", "--max-model-len=512", "--kv-memory=32MiB") as server:
            assert "blk.0.surprise.weight" in server.log()
