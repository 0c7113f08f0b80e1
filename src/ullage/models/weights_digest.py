"""A digest of a model's weights, by which their answers can be told from those of others."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ullage.base.errors import ModelFileError

WEIGHT_SUFFIXES = (".gguf", ".safetensors")


def weights_digest(path: Path) -> str:
    """SHA-256 of a GGUF file, or over the weight files of a folder in the order of their names. Reads all of them.

    :raises ModelFileError: there are none, or one can't be read
    """
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in WEIGHT_SUFFIXES)
    if not files:
        raise ModelFileError(f"{path} has no file of weights")
    digests = []
    for file in files:
        try:
            with open(file, "rb") as opened:
                digests.append(hashlib.file_digest(opened, "sha256").hexdigest())
        except OSError as error:
            raise ModelFileError(f"can't read {file}: {error.strerror}") from error
    return digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()
