"""By what weights are known."""

import hashlib
import threading
from pathlib import Path

import pytest

from ullage.base.errors import ModelFileError
from ullage.models.weights_digest import begin_weights_digest, weights_digest


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


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(ModelFileError, match="Permission denied"):
        weights_digest(tmp_path)
    assert isinstance(begin_weights_digest(tmp_path).exception(5), ModelFileError)


def test_whatever_goes_wrong_while_weights_are_read_ends_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> None:
        raise MemoryError

    reported: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda told: reported.append(told.exc_type))
    monkeypatch.setattr(Path, "iterdir", fail)
    assert isinstance(begin_weights_digest(tmp_path).exception(5), ModelFileError)
    for thread in threading.enumerate():
        if thread.name == "weights-digest":
            thread.join()
    assert reported == [MemoryError]


def test_a_digest_that_was_begun_is_the_same_and_nobody_can_cancel_it(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"weights")
    begun = begin_weights_digest(path)
    assert not begun.cancel()
    assert begun.result(5) == weights_digest(path)
