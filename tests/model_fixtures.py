"""Writes tiny models as files: GGUF, and Hugging Face folders. Random weights, a real (if small) tokenizer inside.

    model = tiny_model("qwen3")
    write_gguf(tmp_path / "tiny.gguf", model)
    write_folder(tmp_path / "tiny", model)

Both files hold the same numbers: every weight is a multiple of 1/128 that float32, float16 and bfloat16 all hold.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.random_model import RandomModel

from ullage.models.spec import LayerSpec, ModelSpec, RopeSpec

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")
WINDOW = 8
WINDOW_PERIOD = 2
"""Of the tiny gemma3: every second layer sees everything."""

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("t h", "th e", "Ġ the", "i n", "a n", "e r", "o u", "l l", "h e", "he ll", "hell o", "Ġ w", "o r")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_symbols() -> list[str]:
    """The printable character that stands for each byte in byte-level BPE vocabularies, as in GPT-2."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


TOKENS = (*byte_symbols(), *(merge.replace(" ", "") for merge in MERGES), *SPECIAL_TOKENS)
"""272 tokens; the id is the position."""


class TinyModel(RandomModel):
    """A ``ModelFile`` in memory whose weights every float format holds exactly."""

    def read_tensor(self, name: str) -> NDArray[np.float32]:
        return np.clip(np.round(super().read_tensor(name) * 128) / 128, -2, 2)


def tiny_model(architecture: str, *, num_layers: int = 3, tied: bool = True, seed: int = 0) -> TinyModel:
    gemma = architecture == "gemma3"
    full = LayerSpec(RopeSpec(1_000_000.0 if gemma else 10_000.0))
    local = LayerSpec(RopeSpec(10_000.0), WINDOW)
    spec = ModelSpec(
        architecture=architecture,
        name=f"tiny-{architecture}",
        hidden_size=64,
        intermediate_size=96,
        num_heads=4,
        num_kv_heads=2,
        head_size=32 if architecture in ("qwen3", "gemma3") else 16,
        vocab_size=len(TOKENS),
        max_position=256,
        layers=tuple(local if gemma and (i + 1) % WINDOW_PERIOD else full for i in range(num_layers)),
        norm_eps=1e-6,
        activation="gelu_tanh" if gemma else "silu",
        tied_embeddings=tied,
        qkv_bias=architecture == "qwen2",
        qk_norm=architecture in ("qwen3", "gemma3"),
        post_norms=gemma,
        embedding_scale=8.0 if gemma else 1.0,
    )
    return TinyModel(spec, seed)


# --- GGUF -------------------------------------------------------------------------------------------------------------

GGML_TYPE_NUMBERS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q8_0": 8, "BF16": 30}
GGUF_NAMES = {
    "embed": "token_embd.weight",
    "final_norm": "output_norm.weight",
    "lm_head": "output.weight",
    "o": "attn_output.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "post_attn_norm": "post_attention_norm.weight",
    "post_ffn_norm": "post_ffw_norm.weight",
    "attn_norm": "attn_norm.weight",
    "ffn_norm": "ffn_norm.weight",
}

StoredTensor = tuple[int, tuple[int, ...], bytes]
"""Type number, shape (outermost first), data."""


def write_gguf(
    path: Path,
    model: RandomModel,
    *,
    tensor_type: str = "F32",
    version: int = 3,
    metadata: Mapping[str, object] | None = None,
    tensors: Mapping[str, StoredTensor | None] | None = None,
) -> Path:
    """
    :param tensor_type: of the matrices; vectors are always F32
    :param metadata: keys to set besides the usual ones, or to leave out (None)
    :param tensors: stored tensors to add or replace, or to leave out (None)
    """
    keys = gguf_metadata(model.spec) | tokenizer_metadata() | dict(metadata or {})
    stored = gguf_tensors(model, tensor_type) | dict(tensors or {})
    path.write_bytes(
        gguf_bytes(
            {key: value for key, value in keys.items() if value is not None},
            {name: tensor for name, tensor in stored.items() if tensor is not None},
            version=version,
        )
    )
    return path


def gguf_metadata(spec: ModelSpec) -> dict[str, object]:
    own: dict[str, object] = {
        "context_length": spec.max_position,
        "embedding_length": spec.hidden_size,
        "block_count": spec.num_layers,
        "feed_forward_length": spec.intermediate_size,
        "attention.head_count": spec.num_heads,
        "attention.head_count_kv": spec.num_kv_heads,
        "attention.layer_norm_rms_epsilon": spec.norm_eps,
        "attention.key_length": spec.head_size,
        "attention.value_length": spec.head_size,
        "rope.freq_base": max(layer.rope.theta for layer in spec.layers),
    }
    if spec.architecture == "gemma3":
        own |= {"attention.sliding_window": WINDOW, "attention.sliding_window_pattern": WINDOW_PERIOD}
    general = {"general.architecture": spec.architecture, "general.name": spec.name}
    return general | {f"{spec.architecture}.{key}": value for key, value in own.items()}


def tokenizer_metadata() -> dict[str, object]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": list(TOKENS),
        "tokenizer.ggml.token_type": [3 if token in SPECIAL_TOKENS else 1 for token in TOKENS],
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": TOKENS.index("<|endoftext|>"),
        "tokenizer.ggml.eos_token_id": TOKENS.index("<|im_end|>"),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def gguf_tensors(model: RandomModel, tensor_type: str) -> dict[str, StoredTensor]:
    stored: dict[str, StoredTensor] = {}
    for canonical in model.tensor_names():
        values = model.read_tensor(canonical)
        part = canonical.rpartition(".")[2]
        if model.spec.architecture == "llama" and part in ("q", "k", "q_bias", "k_bias"):
            values = interleave(values, model.spec.num_heads if part[0] == "q" else model.spec.num_kv_heads)
        stored[gguf_name(canonical)] = gguf_tensor(values, tensor_type if values.ndim > 1 else "F32")
    return stored


def gguf_name(canonical: str) -> str:
    prefix, _, part = canonical.rpartition(".")
    stem = GGUF_NAMES.get(part, f"attn_{part.removesuffix('_bias')}.{'bias' if part.endswith('_bias') else 'weight'}")
    return f"{prefix.replace('layers', 'blk')}.{stem}" if prefix else stem


def gguf_tensor(values: NDArray[np.float32], tensor_type: str = "F32") -> StoredTensor:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import quantize

    number = GGML_TYPE_NUMBERS[tensor_type]
    data = quantize(np.ascontiguousarray(values, np.float32), GGMLQuantizationType(number))
    return number, values.shape, data.tobytes()


def interleave(values: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Rows of each head as llama GGUF files have them: first of first half, first of second half, second of ..."""
    heads = values.reshape(num_heads, -1, *values.shape[1:])
    halves = np.split(heads, 2, axis=1)
    return np.stack(halves, axis=2).reshape(values.shape)


def gguf_bytes(
    metadata: Mapping[str, object], tensors: Mapping[str, StoredTensor], *, version: int = 3, alignment: int = 32
) -> bytes:
    """A whole file; nothing is checked, so that tests can write nonsense."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(_gguf_text(key) + gguf_value(value) for key, value in metadata.items())
    data = b""
    for name, (number, shape, stored) in tensors.items():
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += _gguf_text(name) + dimensions + struct.pack("<IQ", number, len(data))
        data += stored + b"\0" * (-len(stored) % alignment)
    return head + b"\0" * (-len(head) % alignment) + data


def gguf_value(value: object) -> bytes:
    """A value with its type before it: int as u32, float as f32, lists by their first entry."""
    if isinstance(value, list):
        items = [gguf_value(item) for item in value]
        return struct.pack("<I", 9) + items[0][:4] + struct.pack("<Q", len(items)) + b"".join(i[4:] for i in items)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _gguf_text(value)
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    return struct.pack("<If", 6, value)


def _gguf_text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


# --- Hugging Face folder ----------------------------------------------------------------------------------------------

HF_CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}
HF_NAMES = {
    "embed": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "lm_head": "lm_head.weight",
    "attn_norm": "input_layernorm.weight",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
HF_NORMS = {"ffn_norm": "post_attention_layernorm.weight"}
HF_GEMMA3_NORMS = {
    "post_attn_norm": "post_attention_layernorm.weight",
    "ffn_norm": "pre_feedforward_layernorm.weight",
    "post_ffn_norm": "post_feedforward_layernorm.weight",
}


def write_folder(
    path: Path,
    model: RandomModel,
    *,
    dtype: str = "F32",
    num_shards: int = 2,
    config: Mapping[str, object] | None = None,
    tensors: Mapping[str, NDArray[np.float32] | None] | None = None,
) -> Path:
    """
    :param dtype: of all tensors: F64, F32, F16 or BF16
    :param num_shards: 1 writes a single file without an index
    :param config: keys of ``config.json`` to set besides the usual ones, or to leave out (None)
    :param tensors: stored tensors to add or replace, or to leave out (None)
    """
    path.mkdir(parents=True, exist_ok=True)
    keys = {key: value for key, value in (hf_config(model.spec) | dict(config or {})).items() if value is not None}
    _write_json(path / "config.json", keys)
    _write_tokenizer(path)
    stored = {hf_name(name, model.spec): _hf_values(model, name) for name in model.tensor_names()} | dict(tensors or {})
    present = {name: values for name, values in stored.items() if values is not None}
    names = list(present)
    if num_shards == 1:
        (path / "model.safetensors").write_bytes(safetensors_bytes(present, dtype))
        return path
    weight_map = {}
    for shard in range(num_shards):
        file_name = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        part = {name: present[name] for name in names[shard::num_shards]}
        (path / file_name).write_bytes(safetensors_bytes(part, dtype))
        weight_map |= dict.fromkeys(part, file_name)
    _write_json(path / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    return path


def hf_config(spec: ModelSpec) -> dict[str, object]:
    config: dict[str, object] = {
        "architectures": [HF_CLASSES[spec.architecture]],
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_size,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_position,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": max(layer.rope.theta for layer in spec.layers),
        "tie_word_embeddings": spec.tied_embeddings,
        "eos_token_id": TOKENS.index("<|im_end|>"),
    }
    if spec.architecture == "gemma3":
        config |= {"sliding_window": WINDOW, "sliding_window_pattern": WINDOW_PERIOD}
        config |= {"query_pre_attn_scalar": spec.head_size}
    return config


def hf_name(canonical: str, spec: ModelSpec) -> str:
    prefix, _, part = canonical.rpartition(".")
    names = HF_NAMES | (HF_GEMMA3_NORMS if spec.architecture == "gemma3" else HF_NORMS)
    kind = "bias" if part.endswith("_bias") else "weight"
    stem = names.get(part, f"self_attn.{part.removesuffix('_bias')}_proj.{kind}")
    return f"model.{prefix}.{stem}" if prefix else stem


def _hf_values(model: RandomModel, canonical: str) -> NDArray[np.float32]:
    values = model.read_tensor(canonical)
    return values - 1 if model.spec.architecture == "gemma3" and canonical.endswith("norm") else values


def safetensors_bytes(tensors: Mapping[str, NDArray[np.float32]], dtype: str = "F32") -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        stored = _in_dtype(values, dtype)
        header[name] = {
            "dtype": dtype,
            "shape": list(values.shape),
            "data_offsets": [len(data), len(data) + len(stored)],
        }
        data += stored
    return safetensors_file(header, data)


def safetensors_file(header: object, data: bytes) -> bytes:
    """A whole file; nothing is checked, so that tests can write nonsense."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _in_dtype(values: NDArray[np.float32], dtype: str) -> bytes:
    if dtype == "BF16":
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return values.astype({"F64": "<f8", "F32": "<f4", "F16": "<f2"}[dtype]).tobytes()


def _write_tokenizer(path: Path) -> None:
    ids = {token: i for i, token in enumerate(TOKENS)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    bpe = {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False, "byte_fallback": False}
    bpe |= {"continuing_subword_prefix": None, "end_of_word_suffix": None, "ignore_merges": False}
    ordinary = {token: i for token, i in ids.items() if token not in SPECIAL_TOKENS}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": ids[token], "content": token} | added for token in SPECIAL_TOKENS],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": bpe | {"vocab": ordinary, "merges": [merge.split() for merge in MERGES]},
    }
    _write_json(path / "tokenizer.json", tokenizer)
    config = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "add_bos_token": False}
    _write_json(path / "tokenizer_config.json", config | {"chat_template": CHAT_TEMPLATE})


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
