"""A model in a Hugging Face folder: ``config.json``, safetensors (one or sharded), tokenizer files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ullage.base.errors import ModelFileError
from ullage.models.fields import Fields, read_json_object
from ullage.models.hf_config import spec_from_config
from ullage.models.safetensors_file import SafetensorsFile, open_shards
from ullage.models.spec import ModelSpec
from ullage.models.tensor_check import match_tensors

if TYPE_CHECKING:
    from ullage.models.tokenizer import Tokenizer

CONFIG_NAME = "config.json"
MAX_CONFIG_BYTES = 16 << 20
MAX_TEMPLATE_BYTES = 1 << 20

_MODEL_NAMES = MappingProxyType({"embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight"})
_LAYER_NAMES = MappingProxyType(
    {
        "attn_norm": "input_layernorm.weight",
        "q": "self_attn.q_proj.weight",
        "k": "self_attn.k_proj.weight",
        "v": "self_attn.v_proj.weight",
        "o": "self_attn.o_proj.weight",
        "q_bias": "self_attn.q_proj.bias",
        "k_bias": "self_attn.k_proj.bias",
        "v_bias": "self_attn.v_proj.bias",
        "q_norm": "self_attn.q_norm.weight",
        "k_norm": "self_attn.k_norm.weight",
        "ffn_norm": "post_attention_layernorm.weight",
        "gate": "mlp.gate_proj.weight",
        "up": "mlp.up_proj.weight",
        "down": "mlp.down_proj.weight",
    }
)
_GEMMA3_LAYER_NAMES = MappingProxyType(
    {
        **_LAYER_NAMES,
        "ffn_norm": "pre_feedforward_layernorm.weight",
        "post_attn_norm": "post_attention_layernorm.weight",
        "post_ffn_norm": "post_feedforward_layernorm.weight",
    }
)
_VISION_PREFIXES = ("vision_tower.", "model.vision_tower.", "multi_modal_projector.", "model.multi_modal_projector.")
_TEXT_PREFIXES = ("language_model.", "model.language_model.")


class HFFolder:
    """``ModelFile`` of a folder. Opening it reads all headers and checks them against the architecture.

    :raises ModelFileError: incomplete, damaged, or a model that can't run
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        config = path / CONFIG_NAME
        self.spec = spec_from_config(config, read_json_object(config, MAX_CONFIG_BYTES), path.resolve().name)
        self._gemma3 = self.spec.architecture == "gemma3"
        shards = open_shards(path)
        self._files = set(shards.values())
        try:
            self._tensors = _by_plain_name(path, shards)
            shapes = {name: file.tensors[stored].shape for name, (file, stored) in self._tensors.items()}
            stored_name = partial(stored_tensor_name, self.spec)
            self._names = match_tensors(path, self.spec, shapes, stored_name, self._is_ignored)
            for name in self._names.values():
                file, stored = self._tensors[name]
                file.check_readable(stored)
        except ModelFileError:
            self.close()
            raise

    def tensor_names(self) -> Iterator[str]:
        return iter(self._names)

    def read_tensor(self, name: str) -> NDArray[np.float32]:
        file, stored = self._tensors[self._names[name]]
        values = file.read(stored)
        if self._gemma3 and name.endswith("norm"):
            values += 1.0  # stored as the distance from 1
        return values

    def read_rows(self, name: str, first: int, count: int) -> NDArray[np.float32]:
        file, stored = self._tensors[self._names[name]]
        return file.read(stored, first, count)

    def stored_bytes(self) -> int:
        return sum(file.tensors[stored].num_bytes for file, stored in self._tensors.values())

    def tokenizer(self) -> Tokenizer:
        from ullage.models.tokenizer import tokenizer_from_folder

        return tokenizer_from_folder(self.path)

    def stored_type(self, name: str) -> str:
        file, stored_name = self._tensors[self._names[name]]
        return file.tensors[stored_name].dtype

    def read_stored_rows(self, name: str, first: int, count: int) -> NDArray[np.uint8]:
        raise ModelFileError(f"{self.path}: rows {first} to {first + count} of tensor {name} aren't stored in blocks")

    def chat_template(self) -> str | None:
        """From ``chat_template.jinja`` if there, else from ``tokenizer_config.json`` (of several the ``default``)."""
        template = self.path / "chat_template.jinja"
        if template.exists():
            return _read_template(template)
        config = self.path / "tokenizer_config.json"
        if not config.exists():
            return None
        fields = Fields(config, read_json_object(config, MAX_CONFIG_BYTES))
        named = fields.raw("chat_template")
        if not isinstance(named, list):
            return fields.text("chat_template") if fields.has("chat_template") else None
        for entry in named:
            if isinstance(entry, dict) and entry.get("name") == "default" and isinstance(entry.get("template"), str):
                return str(entry["template"])
        raise fields.error("chat_template", "is a list without a template named default")

    def release_pages(self) -> None:
        for file in self._files:
            file.release_pages()

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _is_ignored(self, name: str) -> bool:
        if name == "lm_head.weight":
            return self.spec.tied_embeddings  # some files repeat the embedding matrix
        return name.endswith(".rotary_emb.inv_freq") or (self._gemma3 and name.startswith(_VISION_PREFIXES))


def stored_tensor_name(spec: ModelSpec, canonical: str) -> str:
    """What a folder calls the tensor of a canonical name (see ``expected_tensors``)."""
    if canonical == "lm_head":
        return "lm_head.weight"
    if canonical in _MODEL_NAMES:
        return _MODEL_NAMES[canonical]
    _, layer, part = canonical.split(".")
    return f"model.layers.{layer}.{(_GEMMA3_LAYER_NAMES if spec.architecture == 'gemma3' else _LAYER_NAMES)[part]}"


def _by_plain_name(path: Path, shards: dict[str, SafetensorsFile]) -> dict[str, tuple[SafetensorsFile, str]]:
    """Names as a text-only model has them → file and stored name. A model with a vision part puts a prefix before."""
    plain: dict[str, tuple[SafetensorsFile, str]] = {}
    for stored, file in shards.items():
        name = stored
        for prefix in _TEXT_PREFIXES:
            if stored.startswith(prefix):
                rest = stored.removeprefix(prefix)
                name = rest if rest.startswith(("model.", "lm_head.")) else f"model.{rest}"
        if name in plain:
            raise ModelFileError(f"{path}: tensors {plain[name][1]!r:.80} and {stored!r:.80} are the same part")
        plain[name] = (file, stored)
    return plain


def _read_template(path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_TEMPLATE_BYTES + 1)
        if len(text) > MAX_TEMPLATE_BYTES:
            raise ModelFileError(f"{path}: larger than {MAX_TEMPLATE_BYTES} bytes, which no chat template is")
        return text.decode("utf-8")
    except UnicodeDecodeError:
        raise ModelFileError(f"{path}: isn't UTF-8") from None
    except OSError as error:
        raise ModelFileError(f"{path}: can't be read: {error.strerror}") from None
