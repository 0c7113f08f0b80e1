"""A model with random tensors, for tests that need a runner but no real weights."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from ullage.models.layer_groups import layer_groups
from ullage.models.spec import LayerSpec, ModelSpec, RopeSpec, expected_tensors


class RandomModel:
    """Implements ``ModelFile``: each tensor follows from the seed and its name, wherever it is read from.

    :param gain: factor of the matrices inside the layers; a small one keeps the softmax flat, so that rounding isn't
        magnified from layer to layer
    """

    path = Path("random")

    def __init__(self, spec: ModelSpec, seed: int = 0, *, gain: float = 2.0) -> None:
        self.spec = spec
        self._seed = seed
        self._gain = gain

    def tensor_names(self) -> Iterator[str]:
        return iter(expected_tensors(self.spec))

    def read_tensor(self, name: str) -> NDArray[np.float32]:
        shape = expected_tensors(self.spec)[name]
        values = np.random.default_rng([self._seed, zlib.crc32(name.encode())]).standard_normal(shape, dtype=np.float32)
        if name.endswith("norm"):
            return 1 + values / 4
        if name.endswith("bias"):
            return values / 2
        gain = 2.0 if name in ("embed", "lm_head") else self._gain
        return values * np.float32(gain / shape[-1] ** 0.5)

    def read_rows(self, name: str, first: int, count: int) -> NDArray[np.float32]:
        return self.read_tensor(name)[first : first + count]

    def stored_type(self, name: str) -> str:
        return "F32"

    def read_stored_rows(self, name: str, first: int, count: int) -> NoReturn:
        raise AssertionError("a random model has no blocks")

    def stored_bytes(self) -> int:
        return sum(self.read_tensor(name).nbytes for name in self.tensor_names())

    def tokenizer(self) -> NoReturn:
        raise NotImplementedError("a random model has no tokenizer")

    def chat_template(self) -> None:
        return None

    def release_pages(self) -> None:
        pass

    def close(self) -> None:
        pass


def small_spec(architecture: str = "llama", *, num_layers: int = 3, vocab_size: int = 61) -> ModelSpec:
    """A spec with every feature of the architecture, small enough for loops in Python."""
    rope = RopeSpec(theta=10_000.0)
    factors = RopeSpec(theta=500_000.0, freq_factors=(1.0, 1.5, 4.0, 8.0), attention_factor=1.1)
    layers = {
        "llama": [LayerSpec(factors)] * num_layers,
        "qwen2": [LayerSpec(rope)] * num_layers,
        "qwen3": [LayerSpec(rope)] * num_layers,
        "gemma3": [LayerSpec(factors) if i % 3 == 2 else LayerSpec(rope, window=5) for i in range(num_layers)],
    }
    gemma = architecture == "gemma3"
    return ModelSpec(
        architecture=architecture,
        name=f"random {architecture}",
        hidden_size=24,
        intermediate_size=40,
        num_heads=6,
        num_kv_heads=2,
        head_size=8,
        vocab_size=vocab_size,
        max_position=256,
        layers=tuple(layers[architecture]),
        norm_eps=1e-5,
        activation="gelu_tanh" if gemma else "silu",
        tied_embeddings=gemma or architecture == "qwen2",
        qkv_bias=architecture == "qwen2",
        qk_norm=gemma or architecture == "qwen3",
        post_norms=gemma,
        embedding_scale=24**0.5 if gemma else 1.0,
        attention_scale=0.25 if gemma else None,
    )


def tables_of(spec: ModelSpec, block_ids: Sequence[int], num_blocks: int) -> list[list[int]]:
    """A block table for each layer group: that of the first one, moved on by ``num_blocks`` from group to group."""
    return [[block_id + group * num_blocks for block_id in block_ids] for group in range(len(layer_groups(spec)))]
