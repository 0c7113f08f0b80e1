"""Opens a model, whatever its format."""

from __future__ import annotations

from pathlib import Path

from ullage.base.errors import ModelFileError
from ullage.models.gguf_file import GGUFFile
from ullage.models.gguf_header import MAGIC
from ullage.models.hf_folder import CONFIG_NAME, HFFolder
from ullage.models.model_file import ModelFile

_FORMATS_HINT = f"give a GGUF file, or a folder with {CONFIG_NAME} and safetensors"


def open_model(path: Path) -> ModelFile:
    """Reads headers only; the tensors stay on disk. The caller closes the model.

    :param path: a GGUF file or a Hugging Face folder
    :raises ModelFileError: nothing there, neither of the two, damaged, or a model that can't run
    """
    if path.is_dir():
        if not (path / CONFIG_NAME).is_file():
            raise ModelFileError(f"{path}: a folder without {CONFIG_NAME}", hint=_FORMATS_HINT)
        return HFFolder(path)
    if not path.exists():
        raise ModelFileError(f"{path}: there is nothing of that name", hint=_FORMATS_HINT)
    if not path.is_file():
        raise ModelFileError(f"{path}: neither a file nor a folder", hint=_FORMATS_HINT)
    try:
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
    except OSError as error:
        raise ModelFileError(f"{path}: can't be read: {error.strerror}") from None
    if not start:
        raise ModelFileError(f"{path}: the file is empty", hint="fetch it again")
    if start != MAGIC:
        raise ModelFileError(f"{path}: not a GGUF file", hint=_FORMATS_HINT)
    return GGUFFile(path)
