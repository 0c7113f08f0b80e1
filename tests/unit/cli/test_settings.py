from __future__ import annotations

import pytest

from ullage.base.errors import ConfigError
from ullage.cli.settings import EVERY_NAME, ModelOptions


def test_names_are_those_given_between_commas():
    assert ModelOptions("tiny, other").names("/models/x.gguf") == ("tiny", "other")


def test_a_model_is_called_like_its_file_or_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ModelOptions().names("smollm2") == ("smollm2",)
    assert ModelOptions().names("/models/tiny.gguf") == ("tiny",)
    assert ModelOptions().names(".") == (tmp_path.name,)
    assert ModelOptions().names("inner/..") == (tmp_path.name,)


@pytest.mark.parametrize(("given", "model"), [(",", "x"), ("", "x"), ("a,", "x"), (None, "/"), (None, ".gguf")])
def test_an_empty_name_is_refused(given, model):
    with pytest.raises(ConfigError, match="gives the model an empty name"):
        ModelOptions(given).names(model)


def test_the_settings_of_all_commands_are_known_together():
    assert {"served_model_name", "max_tokens", "kv_memory", "port"} <= EVERY_NAME
