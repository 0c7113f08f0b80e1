"""Copies of a GGUF file in other tensor types, made with the ``gguf`` library; and what its weights come to by a plain
forward pass in float32, written after Hugging Face's model and sharing no code with ours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from tests.model_fixtures import byte_symbols

Array = NDArray[np.float32]


def copy_gguf(
    source: Path,
    target: Path,
    tensor_type: GGMLQuantizationType | None = None,
    extra_tensors: Mapping[str, Array] | None = None,
) -> Path:
    """
    :param tensor_type: of the matrices; None leaves everything as it is
    :param extra_tensors: put beside the file's own
    """
    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kind, item_kind = field.types[0], field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, item_kind)
    for tensor in reader.tensors:
        if tensor_type is None or len(tensor.shape) == 1:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        else:
            values = quantize(dequantize(tensor.data, tensor.tensor_type), tensor_type)
            writer.add_tensor(tensor.name, values, raw_dtype=tensor_type)
    for name, values in (extra_tensors or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


class PlainLlama:
    """A Llama GGUF file as Hugging Face's ``LlamaForCausalLM`` would run it: query and key rows are first put back into
    the order that its rotary embedding (two halves) is written for."""

    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        keys = {name: field.contents() for name, field in reader.fields.items() if name.startswith("llama.")}
        self._num_layers = keys["llama.block_count"]
        self._num_heads = keys["llama.attention.head_count"]
        self._num_kv_heads = keys["llama.attention.head_count_kv"]
        self._theta = keys["llama.rope.freq_base"]
        self._epsilon = float(keys["llama.attention.layer_norm_rms_epsilon"])
        self._weights = {tensor.name: dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
        self.token_texts: list[str] = reader.fields["tokenizer.ggml.tokens"].contents()
        self.token_types: list[int] = reader.fields["tokenizer.ggml.token_type"].contents()

    def logprobs(self, token_ids: Sequence[int], num_positions: int) -> Array:
        """[num_positions, vocabulary]: after each of the last tokens."""
        hidden = self._weights["token_embd.weight"][list(token_ids)]
        for layer in range(self._num_layers):
            hidden = hidden + self._attention(self._norm(hidden, f"blk.{layer}.attn_norm"), f"blk.{layer}")
            hidden = hidden + self._feed_forward(self._norm(hidden, f"blk.{layer}.ffn_norm"), f"blk.{layer}")
        last = self._norm(hidden[-num_positions:], "output_norm")
        logits = last @ self._weights["token_embd.weight"].T
        logits -= logits.max(-1, keepdims=True)
        assert logits.dtype == np.float32
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    def token_name(self, token_id: int) -> str:
        """As the completions API names it."""
        text = self.token_texts[token_id]
        if self.token_types[token_id] != 1:
            return text
        byte_of = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
        raw = bytes(byte_of[symbol] for symbol in text)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def _norm(self, values: Array, name: str) -> Array:
        scale = 1 / np.sqrt(np.mean(values**2, -1, keepdims=True) + self._epsilon)
        return values * scale * self._weights[f"{name}.weight"]

    def _attention(self, values: Array, block: str) -> Array:
        query = self._rotated(values @ self._unpermuted(f"{block}.attn_q", self._num_heads).T, self._num_heads)
        key = self._rotated(values @ self._unpermuted(f"{block}.attn_k", self._num_kv_heads).T, self._num_kv_heads)
        value = self._heads(values @ self._weights[f"{block}.attn_v.weight"].T, self._num_kv_heads)
        repeats = self._num_heads // self._num_kv_heads
        key, value = np.repeat(key, repeats, 0), np.repeat(value, repeats, 0)
        scores = query @ key.swapaxes(1, 2) / math.sqrt(query.shape[-1])
        scores += np.triu(np.full(scores.shape[1:], -np.inf, np.float32), 1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (weights / weights.sum(-1, keepdims=True)) @ value
        return mixed.swapaxes(0, 1).reshape(len(values), -1) @ self._weights[f"{block}.attn_output.weight"].T

    def _feed_forward(self, values: Array, block: str) -> Array:
        gate = values @ self._weights[f"{block}.ffn_gate.weight"].T
        up = values @ self._weights[f"{block}.ffn_up.weight"].T
        return (gate / (1 + np.exp(-gate)) * up) @ self._weights[f"{block}.ffn_down.weight"].T

    def _unpermuted(self, name: str, num_heads: int) -> Array:
        weight = self._weights[f"{name}.weight"]
        pairs = weight.reshape(num_heads, -1, 2, weight.shape[1])
        return pairs.swapaxes(1, 2).reshape(weight.shape)

    def _heads(self, values: Array, num_heads: int) -> Array:
        return values.reshape(len(values), num_heads, -1).swapaxes(0, 1)

    def _rotated(self, values: Array, num_heads: int) -> Array:
        heads = self._heads(values, num_heads)
        half = heads.shape[-1] // 2
        frequencies = self._theta ** (-np.arange(half) / half)
        angles = np.arange(len(values))[:, None] * frequencies
        cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        first, second = heads[..., :half], heads[..., half:]
        return np.concatenate([first * cosines - second * sines, second * cosines + first * sines], -1)
