from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from ullage.base.config import check_environment, load_settings, read_config_file, setting, settings_of
from ullage.base.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Room:
    block_size: int = setting(16, "Tokens per block.", at_least=1)
    kv_memory: int | None = setting(None, "Bytes of the pool.", shown_default="what is free", in_bytes=True)
    runner: Literal["native", "numpy"] = setting("native", "What runs it.")
    prefix_caching: bool = setting(True, "Reuse prefixes.")
    rate: float = setting(1.0, "Per second.")
    name: str = setting("x", "A text.")
    not_a_setting: str = "inner"


def test_flags_win_over_environment_over_file_over_default():
    file = {"block_size": 1, "rate": 2, "name": "file"}
    environ = {"ULLAGE_BLOCK_SIZE": "2", "ULLAGE_RATE": "2.5"}
    flags = {"block_size": 3, "rate": None}

    assert load_settings(Room, file=file, environ=environ, flags=flags) == Room(block_size=3, rate=2.5, name="file")
    assert load_settings(Room) == Room()


def test_values_are_parsed_by_type():
    environ = {"ULLAGE_KV_MEMORY": "64MiB", "ULLAGE_PREFIX_CACHING": "off", "ULLAGE_RUNNER": "numpy"}
    room = load_settings(Room, environ=environ)
    assert (room.kv_memory, room.prefix_caching, room.runner) == (64 << 20, False, "numpy")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("block_size", "many", "block_size in the configuration file must be a whole number, got 'many'"),
        ("block_size", 1.5, "must be a whole number"),
        ("block_size", True, "must be a whole number"),
        ("block_size", 0, "must be at least 1"),
        ("runner", "cuda", "must be one of native, numpy"),
        ("prefix_caching", "maybe", "must be true or false"),
        ("name", 3, "must be text"),
        ("kv_memory", "2G", "has no unit"),
        ("kv_memory", -1, "must be at least 0"),
        ("rate", float("nan"), "rate in the configuration file must be a finite number, got nan"),
        ("rate", float("-inf"), "must be a finite number"),
        ("rate", "nan", "must be a finite number"),
        ("rate", "1e999", "must be a finite number"),
        ("rate", 10**400, "must be a finite number"),
    ],
)
def test_a_value_that_cannot_be_honoured_is_refused_with_its_source(name, value, message):
    with pytest.raises(ConfigError, match=message):
        load_settings(Room, file={name: value})


def test_a_config_file_takes_the_names_of_the_flags(tmp_path):
    path = tmp_path / "server.toml"
    path.write_text('block-size = 8\nkv_memory = "1MiB"\n')
    assert read_config_file(path, settings_of(Room)) == {"block_size": 8, "kv_memory": "1MiB"}


def test_an_unknown_name_in_the_file_is_refused_with_the_nearest(tmp_path):
    path = tmp_path / "server.toml"
    path.write_text("blok-size = 8\n")
    with pytest.raises(ConfigError) as refused:
        read_config_file(path, settings_of(Room))
    assert "sets blok_size" in refused.value.message
    assert refused.value.hint == "did you mean block_size?"


@pytest.mark.parametrize("text", ["block_size", "block_size = 1\nblock-size = 2\n", "\x00"])
def test_a_file_that_is_no_clear_toml_is_refused(tmp_path, text):
    path = tmp_path / "server.toml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        read_config_file(path, settings_of(Room))


def test_an_absent_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        read_config_file(tmp_path / "absent.toml", settings_of(Room))


def test_a_misspelt_environment_variable_is_refused():
    check_environment({"ULLAGE_HOME": "/x", "ULLAGE_RATE": "1", "PATH": "/bin"}, settings_of(Room))
    with pytest.raises(ConfigError) as refused:
        check_environment({"ULLAGE_BLOCKSIZE": "1"}, settings_of(Room))
    assert refused.value.hint == "did you mean ULLAGE_BLOCK_SIZE?"


def test_defaults_are_shown_as_people_write_them():
    shown = {name: info.default_text for name, info in settings_of(Room).items()}
    assert shown == {
        "block_size": "16",
        "kv_memory": "what is free",
        "runner": "native",
        "prefix_caching": "on",
        "rate": "1.0",
        "name": "x",
    }
