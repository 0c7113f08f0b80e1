from __future__ import annotations

import os

import numpy as np
import pytest
from tests.model_fixtures import ARCHITECTURES, tiny_model, write_folder, write_gguf

from ullage.base.errors import ModelFileError
from ullage.models.gguf_file import GGUFFile
from ullage.models.hf_folder import HFFolder
from ullage.models.open_model import open_model

SENTENCE = "hello there in the world: 天气 🙂"


def test_the_format_is_found_by_content_not_by_name(tmp_path):
    model = tiny_model("llama")
    file = open_model(write_gguf(tmp_path / "weights.bin", model))
    folder = open_model(write_folder(tmp_path / "weights.gguf", model))
    assert (type(file), type(folder)) == (GGUFFile, HFFolder)
    file.close()
    folder.close()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_both_formats_bring_the_same_tokenizer(tmp_path, architecture):
    model = tiny_model(architecture)
    file = open_model(write_gguf(tmp_path / "tiny.gguf", model))
    folder = open_model(write_folder(tmp_path / "tiny", model))
    token_ids = file.tokenizer().encode(SENTENCE)
    assert token_ids == folder.tokenizer().encode(SENTENCE)
    assert file.tokenizer().decode(token_ids) == folder.tokenizer().decode(token_ids) == SENTENCE
    file.close()
    folder.close()


def refused(path, complaint):
    with pytest.raises(ModelFileError, match=complaint) as error:
        open_model(path)
    assert str(path) in error.value.message
    assert error.value.hint


def test_a_missing_path_is_named(tmp_path):
    refused(tmp_path / "nothing.gguf", "there is nothing of that name")


def test_a_folder_without_config_is_refused(tmp_path):
    refused(tmp_path, "a folder without config.json")


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "empty.gguf").touch()
    refused(tmp_path / "empty.gguf", "the file is empty")


def test_another_kind_of_file_is_refused(tmp_path):
    (tmp_path / "page.gguf").write_text("<html>404</html>")
    refused(tmp_path / "page.gguf", "not a GGUF file")


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "neither a file nor a folder")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("first", "count"), [(0, 16), (3, 30), (33, 7), (63, 1)])
def test_rows_of_a_matrix_are_those_of_the_whole(tmp_path, architecture, first, count):
    model = tiny_model(architecture)
    for opened in (
        open_model(write_gguf(tmp_path / "tiny.gguf", model)),
        open_model(write_folder(tmp_path / "f", model)),
    ):
        for name in ("embed", "layers.1.q", "layers.1.k", "layers.0.gate", "layers.0.down"):
            whole = opened.read_tensor(name)
            rows = opened.read_rows(name, first % len(whole), min(count, len(whole) - first % len(whole)))
            np.testing.assert_array_equal(rows, whole[first % len(whole) :][:count], err_msg=name)
        opened.close()
