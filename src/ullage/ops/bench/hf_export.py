"""A model as a Hugging Face folder with bf16 weights and without tokenizer, for peers that read nothing else."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ullage.base.errors import ModelFileError
from ullage.models.hf_folder import stored_tensor_name
from ullage.models.model_file import ModelFile
from ullage.models.spec import ModelSpec, expected_tensors

CLASSES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text"),
}
PIECE_ROWS = 4096


def export_folder(model: ModelFile, folder: Path) -> None:
    """Writes ``config.json`` and ``model.safetensors`` (format: github.com/huggingface/safetensors).

    :raises ModelFileError: rotary frequencies that the file states one by one, which a config can't
    """
    (folder / "config.json").write_text(json.dumps(config_of(model.spec), indent=2))
    header: dict[str, Any] = {}
    end = 0
    shapes = expected_tensors(model.spec)
    for name, shape in shapes.items():
        num_bytes = 2 * math.prod(shape)
        stored = stored_tensor_name(model.spec, name)
        header[stored] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + num_bytes]}
        end += num_bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            _write_tensor(model, name, shape, file)


def config_of(spec: ModelSpec) -> dict[str, Any]:
    """:raises ModelFileError: as ``export_folder``"""
    if any(layer.rope.freq_factors is not None or layer.rope.attention_factor != 1 for layer in spec.layers):
        raise ModelFileError(f"{spec.name}: its rotary frequencies can't be written as a config.json")
    class_name, model_type = CLASSES[spec.architecture]
    config: dict[str, Any] = {
        "architectures": [class_name],
        "model_type": model_type,
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
        "torch_dtype": "bfloat16",
    }
    if spec.architecture != "gemma3":
        return config | {"hidden_act": "silu"}
    windows = [layer.window for layer in spec.layers]
    return config | {
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_local_base_freq": min(layer.rope.theta for layer in spec.layers),
        "query_pre_attn_scalar": round(spec.score_scale**-2),
        "sliding_window": max(window or 0 for window in windows),
        "layer_types": ["sliding_attention" if window else "full_attention" for window in windows],
    }


def _write_tensor(model: ModelFile, name: str, shape: tuple[int, ...], file: BinaryIO) -> None:
    if len(shape) == 1:
        values = model.read_tensor(name)
        if model.spec.architecture == "gemma3" and name.endswith("norm"):
            values = values - 1  # stored as the distance from 1
        file.write(_bf16(values))
        return
    for first in range(0, shape[0], PIECE_ROWS):
        file.write(_bf16(model.read_rows(name, first, min(PIECE_ROWS, shape[0] - first))))


def _bf16(values: NDArray[np.float32]) -> bytes:
    """Rounded to nearest, ties to even."""
    words = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return (((words + 0x7FFF + ((words >> 16) & 1)) >> 16).astype("<u2")).tobytes()
