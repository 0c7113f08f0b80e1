"""The model of a plan: a folder, a ``config.json``, a GGUF file, a name in the store or in the catalogue, a hub id."""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ullage.base.errors import ConfigError, ModelFileError
from ullage.models.fields import parse_json_object, read_json_object
from ullage.models.gguf_header import MAGIC, read_header
from ullage.models.mapped_file import MappedFile
from ullage.models.safetensors_file import open_shards
from ullage.models.spec import ModelSpec, expected_tensors
from ullage.models.store import find_model as find_stored
from ullage.plan.architecture import Architecture, architecture_of
from ullage.plan.catalogue import find_model as find_catalogued
from ullage.plan.catalogue import similar_models
from ullage.plan.deployment.gguf_config import config_from_gguf

CONFIG_NAME = "config.json"
MAX_CONFIG_BYTES = 16 << 20
HUB = "https://huggingface.co"
HUB_TIMEOUT_SECONDS = 5
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model of which only dimensions are known; no weights are loaded.

    :ivar source: where the dimensions come from, in words
    :ivar stored_bytes: of all tensors in its file; None: there is no file, sizes follow from the dimensions
    :ivar is_gguf: whether it is one GGUF file
    :ivar path: of its file or folder; None: from the catalogue or the hub
    """

    name: str
    config: Mapping[str, object]
    architecture: Architecture
    source: str
    stored_bytes: int | None = None
    is_gguf: bool = False
    path: Path | None = None
    weights: dict[Hashable, object] = field(default_factory=dict, compare=False, repr=False)
    """Sizes that were worked out already, by what they depend on: a plan and its alternatives share them."""

    def runnable(self) -> tuple[ModelSpec, Mapping[str, str]]:
        """What Ullage's own engine would run, and the type of each tensor by its canonical name.

        :raises ModelFileError: a model that it can't run
        """
        if self.is_gguf and self.path is not None:
            from ullage.kernels.layout import tensor_types
            from ullage.models.open_model import open_model

            model = open_model(self.path)
            try:
                return model.spec, tensor_types(model)
            finally:
                model.close()
        from ullage.models.hf_config import spec_from_config

        spec = spec_from_config(self.path or Path(self.name), dict(self.config), self.name)
        return spec, dict.fromkeys(expected_tensors(spec), "BF16")


def load_model(name: str) -> PlannedModel:
    """What ``name`` means: a path first, then the store, the catalogue, and a hub id where there is a network.

    :raises ModelFileError: nothing of that name, or a file that is damaged or none of the kinds
    :raises ConfigError: a configuration whose memory can't be worked out
    """
    try:
        path = find_stored(name)
    except ModelFileError as error:
        catalogued = find_catalogued(name)
        if catalogued is not None:
            return PlannedModel(name, catalogued, architecture_of(catalogued), "the built-in catalogue")
        if _HUB_ID.fullmatch(name) and not name.endswith((".json", ".gguf")):
            config = _from_hub(name)
            return PlannedModel(name, config, architecture_of(config), f"{HUB}/{name}")
        near = similar_models(name)
        hint = "did you mean " + " or ".join(near) + "?" if near else "see: ullage plan --list"
        raise ModelFileError(
            f"{name!r} is no file, no folder, and no model in the store or in the catalogue", hint=hint
        ) from error
    return _from_path(path, name)


def _from_path(path: Path, name: str) -> PlannedModel:
    if path.is_dir():
        if not (path / CONFIG_NAME).is_file():
            raise ModelFileError(
                f"{path}: a folder without {CONFIG_NAME}", hint="give the folder of a model, or a file"
            )
        config = read_json_object(path / CONFIG_NAME, MAX_CONFIG_BYTES)
        stored = _bytes_in_folder(path)
        source = f"{path / CONFIG_NAME}" + (" and the headers of its weights" if stored is not None else "")
        return PlannedModel(path.resolve().name, config, architecture_of(config), source, stored, path=path)
    if not path.is_file():
        raise ModelFileError(f"{path}: neither a file nor a folder")
    if _starts_like_gguf(path):
        return _from_gguf(path, name)
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise ModelFileError(
            f"{path}: larger than any config.json, and not a GGUF file", hint="give a config.json, or its folder"
        )
    config = read_json_object(path, MAX_CONFIG_BYTES)
    shown = path.parent.name if path.name == CONFIG_NAME and path.parent.name else path.stem
    return PlannedModel(shown, config, architecture_of(config), str(path), path=path)


def _starts_like_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise ModelFileError(f"{path}: can't be read: {error.strerror}") from None


def _from_gguf(path: Path, name: str) -> PlannedModel:
    file = MappedFile(path)
    try:
        header = read_header(path, file.data)
    finally:
        file.close()
    config = config_from_gguf(path, header)
    stored = sum(tensor.num_bytes for tensor in header.tensors.values())
    return PlannedModel(
        name if os.sep not in name else path.stem,
        config,
        architecture_of(config),
        f"{path}, tensor by tensor",
        stored,
        is_gguf=True,
        path=path,
    )


def _bytes_in_folder(path: Path) -> int | None:
    """Bytes of all tensors; None where the weights aren't there, or not all of them."""
    try:
        shards = open_shards(path)
    except ModelFileError:
        return None
    try:
        return sum(file.tensors[name].num_bytes for name, file in shards.items())
    finally:
        for file in set(shards.values()):
            file.close()


def _from_hub(name: str) -> dict[str, object]:
    """:raises ModelFileError: no network, no such model, or one that needs a licence to be accepted first"""
    from urllib.error import URLError
    from urllib.request import urlopen

    hub = os.environ.get("HF_ENDPOINT", HUB).rstrip("/")
    if not hub.startswith("https://"):
        raise ConfigError(f"HF_ENDPOINT is {hub!r}, not an https address")
    try:
        with urlopen(f"{hub}/{name}/resolve/main/{CONFIG_NAME}", timeout=HUB_TIMEOUT_SECONDS) as answer:
            text = answer.read(MAX_CONFIG_BYTES + 1)
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ModelFileError(
            f"{name!r} is not in the catalogue, and its config.json can't be fetched: {reason}",
            hint="give the path of its config.json, or a name from: ullage plan --list",
        ) from None
    if len(text) > MAX_CONFIG_BYTES:
        raise ModelFileError(f"{name}: its config.json is larger than any such file is")
    return parse_json_object(Path(name) / CONFIG_NAME, text, "the file")
