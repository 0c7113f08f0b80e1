"""A model in one GGUF file, memory-mapped and read tensor by tensor."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from ullage.base.errors import ModelFileError
from ullage.models.fields import Fields
from ullage.models.gguf_header import GGUFTensor, MetadataValue, read_header
from ullage.models.gguf_spec import spec_from_metadata
from ullage.models.mapped_file import MappedFile
from ullage.models.tensor_check import match_tensors

if TYPE_CHECKING:
    from ullage.models.tokenizer import Tokenizer

Value = TypeVar("Value", np.float32, np.uint8)

logger = logging.getLogger(__name__)

_ROPE_FREQS = "rope_freqs.weight"
_MODEL_NAMES = {"embed": "token_embd.weight", "final_norm": "output_norm.weight", "lm_head": "output.weight"}
_LAYER_NAMES = {
    "attn_norm": "attn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "post_attn_norm": "post_attention_norm.weight",
    "ffn_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "post_ffn_norm": "post_ffw_norm.weight",
}


class GGUFFile:
    """``ModelFile`` of a GGUF file. Opening it reads the header and checks it against the file and the architecture.

    :raises ModelFileError: unreadable, damaged, or a model that can't run
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path)
        try:
            header = read_header(path, self._file.data)
            self.metadata: Mapping[str, MetadataValue] = header.metadata
            """Numbers, texts, lists of texts and numpy arrays, by the file's keys."""
            self._tensors = header.tensors
            self._refuse_split()
            shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
            rope_freqs = self._read(_ROPE_FREQS) if _ROPE_FREQS in shapes else None
            self.spec = spec_from_metadata(path, self.metadata, shapes, rope_freqs)
            self._names = match_tensors(path, self.spec, shapes, _stored_name, self._is_unused)
            for name in self._names.values():
                self._check_readable(self._tensors[name])
        except ModelFileError:
            self.close()
            raise

    def tensor_names(self) -> Iterator[str]:
        return iter(self._names)

    def read_tensor(self, name: str) -> NDArray[np.float32]:
        values = self._read(self._names[name])
        return self._unpermuted(values) if self._is_permuted(name) else values

    def read_rows(self, name: str, first: int, count: int) -> NDArray[np.float32]:
        return self._canonical_rows(name, first, count, lambda start, num: self._read(self._names[name], start, num))

    def stored_type(self, name: str) -> str:
        return self._tensors[self._names[name]].type.name

    def read_stored_rows(self, name: str, first: int, count: int) -> NDArray[np.uint8]:
        return self._canonical_rows(name, first, count, lambda start, num: self._read_stored(name, start, num))

    def _canonical_rows(
        self, name: str, first: int, count: int, read: Callable[[int, int], NDArray[Value]]
    ) -> NDArray[Value]:
        """Rows in canonical order, out of what ``read`` (first row, number of rows) has in the file's."""
        if not self._is_permuted(name):
            return read(first, count)
        head_size = self.spec.head_size  # rows change places within their head: read whole heads
        start, end = first // head_size * head_size, -(-(first + count) // head_size) * head_size
        rows = self._unpermuted(read(start, end - start))
        return rows[first - start : first - start + count]

    def _read_stored(self, name: str, first: int, count: int) -> NDArray[np.uint8]:
        tensor = self._tensors[self._names[name]]
        if tensor.type.block_elements == 1:
            raise ModelFileError(f"{self.path}: tensor {tensor.name} isn't stored in blocks")
        row_bytes = tensor.num_bytes // tensor.shape[0]
        return self._file.read_bytes(tensor.start + first * row_bytes, count * row_bytes).reshape(count, row_bytes)

    def _is_permuted(self, name: str) -> bool:
        return self.spec.architecture == "llama" and name.rpartition(".")[2] in ("q", "k", "q_bias", "k_bias")

    def _unpermuted(self, rows: NDArray[Value]) -> NDArray[Value]:
        return _unpermute(rows, len(rows) // self.spec.head_size)

    def stored_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self._tensors.values())

    def tokenizer(self) -> Tokenizer:
        from ullage.models.tokenizer import tokenizer_from_gguf

        return tokenizer_from_gguf(self.metadata, self.path)

    def chat_template(self) -> str | None:
        fields = Fields(self.path, self.metadata)
        return fields.text("tokenizer.chat_template") if fields.has("tokenizer.chat_template") else None

    def release_pages(self) -> None:
        self._file.release_pages()

    def close(self) -> None:
        self._file.close()

    def _refuse_split(self) -> None:
        num_files = Fields(self.path, self.metadata).integer("split.count", 1, minimum=0)
        if num_files > 1:
            raise ModelFileError(
                f"{self.path}: one of {num_files} files of a split model, which isn't supported",
                hint="join them with llama.cpp's llama-gguf-split --merge",
            )

    def _is_unused(self, name: str) -> bool:
        """One that no architecture has is somebody's addition: the model is the same without it. One that another
        architecture has (a bias, an expert) would change what this model says, so it can't be left out.
        """
        from gguf.constants import TENSOR_NAMES

        if name == _ROPE_FREQS:
            return True
        if re.sub(r"^blk\.\d+\.", "blk.{bid}.", name).rpartition(".")[0] in TENSOR_NAMES.values():
            return False
        logger.warning("%s: tensor %.80r is unknown and isn't used", self.path, name)
        return True

    def _check_readable(self, tensor: GGUFTensor) -> None:
        if not tensor.type.readable:
            raise ModelFileError(f"{self.path}: tensor {tensor.name} has type {tensor.type.name}, which can't be read")

    def _read(self, stored_name: str, first_row: int = 0, num_rows: int | None = None) -> NDArray[np.float32]:
        """Dequantised, in the file's order; some rows of a matrix, or all of any tensor."""
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        tensor = self._tensors[stored_name]
        self._check_readable(tensor)
        number, block_elements, block_bytes = tensor.type_number, tensor.type.block_elements, tensor.type.block_bytes

        def decode(stored: NDArray[np.uint8]) -> NDArray[np.float32]:
            return dequantize(stored, GGMLQuantizationType(number))

        shape = tensor.shape if num_rows is None else (num_rows, *tensor.shape[1:])
        start = tensor.start + first_row * (tensor.num_bytes // tensor.shape[0])
        values = self._file.read_values(stored_name, start, math.prod(shape), decode, block_elements, block_bytes)
        return values.reshape(shape)


def _stored_name(canonical: str) -> str:
    if canonical in _MODEL_NAMES:
        return _MODEL_NAMES[canonical]
    _, layer, part = canonical.split(".")
    return f"blk.{layer}.{_LAYER_NAMES[part]}"


def _unpermute(values: NDArray[Value], num_heads: int) -> NDArray[Value]:
    """Rows of each head from interleaved to rotate-half order.

    Llama files pair neighbouring rows for rope; here the first half of a head pairs with the second:
    ``[a0 b0 a1 b1 ...] → [a0 a1 ... b0 b1 ...]``. Source: ``permute`` in llama.cpp's convert_hf_to_gguf.py.
    """
    pairs = values.reshape(num_heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
