"""A model of random weights with the shape of a published one, to measure speed without its files."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ullage.base.errors import ModelFileError
from ullage.models.fields import read_json_object
from ullage.models.hf_config import spec_from_config
from ullage.models.spec import expected_tensors

if TYPE_CHECKING:
    from ullage.models.tokenizer import Tokenizer

BLOCK_NUMBERS = (1 << 20) - 3
"""Random numbers that are made, and repeated. An odd count: rows, whose lengths are even, never repeat soon."""
MAX_CONFIG_BYTES = 16 << 20


class DummyModel:
    """``ModelFile`` of a Hugging Face ``config.json`` alone. Every part of a matrix is the same whenever it is read.

    Matrices have a standard deviation of 1 / sqrt(row length), so that activations stay as large as they come; norms
    are 1, biases 0.

    :raises ModelFileError: the file is damaged, or describes a model that can't run
    """

    def __init__(self, config: Path, seed: int = 0) -> None:
        self.path = config
        name = config.parent.name if config.stem == "config" else config.stem
        self.spec = spec_from_config(config, read_json_object(config, MAX_CONFIG_BYTES), name)
        self._shapes = expected_tensors(self.spec)
        block = np.random.default_rng(seed).standard_normal(BLOCK_NUMBERS, dtype=np.float32)
        self._block = np.concatenate([block, block])

    def tensor_names(self) -> Iterator[str]:
        return iter(self._shapes)

    def read_tensor(self, name: str) -> NDArray[np.float32]:
        shape = self._shapes[name]
        if len(shape) == 2:
            return self.read_rows(name, 0, shape[0])
        return np.zeros(shape, np.float32) if name.endswith("bias") else np.ones(shape, np.float32)

    def read_rows(self, name: str, first: int, count: int) -> NDArray[np.float32]:
        k = self._shapes[name][1]
        values = np.empty(count * k, np.float32)
        position = zlib.crc32(name.encode()) + first * k
        scale = np.float32(k**-0.5)
        for begin in range(0, len(values), BLOCK_NUMBERS):
            piece = values[begin : begin + BLOCK_NUMBERS]
            start = (position + begin) % BLOCK_NUMBERS
            np.multiply(self._block[start : start + len(piece)], scale, out=piece)
        return values.reshape(count, k)

    def stored_type(self, name: str) -> str:  # noqa: ARG002 - all are alike
        """As such models are published."""
        return "BF16"

    def read_stored_rows(self, name: str, first: int, count: int) -> NDArray[np.uint8]:  # noqa: ARG002
        raise ModelFileError(f"{self.path}: {name} is random, it isn't stored in blocks")

    def stored_bytes(self) -> int:
        """What the tensors would take in bf16."""
        return sum(2 * math.prod(shape) for shape in self._shapes.values())

    def tokenizer(self) -> Tokenizer:
        raise ModelFileError(f"{self.path}: random weights have no tokenizer", hint="give token ids as prompts")

    def chat_template(self) -> str | None:
        return None

    def release_pages(self) -> None:
        pass

    def close(self) -> None:
        self._block = np.empty(0, np.float32)
