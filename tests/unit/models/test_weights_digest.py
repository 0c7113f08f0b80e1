"""By what weights are known."""

import hashlib
from pathlib import Path

import pytest

from ullage.base.errors import ModelFileError
from ullage.models.weights_digest import weights_digest


def test_a_file_has_the_digest_that_every_other_program_finds(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"weights")
    assert weights_digest(path) == hashlib.sha256(b"weights").hexdigest()


def test_a_folder_is_known_by_all_its_weights_and_by_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"one")
    (tmp_path / "config.json").write_bytes(b"{}")
    alone = weights_digest(tmp_path)
    (tmp_path / "b.safetensors").write_bytes(b"two")
    both = weights_digest(tmp_path)
    (tmp_path / "config.json").write_bytes(b"[]")
    assert alone != both == weights_digest(tmp_path)


def test_no_weights_are_an_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.gguf"):
        with pytest.raises(ModelFileError):
            weights_digest(path)
