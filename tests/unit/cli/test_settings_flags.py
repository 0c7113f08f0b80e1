from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import click
import pytest
from click.testing import CliRunner

from ullage.base.config import setting
from ullage.base.errors import ConfigError
from ullage.cli.settings_flags import SettingsCommand, load_all


@dataclass(frozen=True, slots=True)
class Engine:
    block_size: int = setting(16, "Tokens per block.", at_least=1)
    kv_memory: int | None = setting(None, "The pool.", shown_default="what is free", in_bytes=True)
    prefix_caching: bool = setting(True, "Reuse prefixes.")
    runner: Literal["native", "numpy"] = setting("native", "What runs it.")


def loaded(*arguments: str, config: str | None = None) -> Engine:
    got: list[Engine] = []

    @click.command(cls=SettingsCommand, sections={"Engine": Engine})
    def command(**flags):
        got.extend(load_all({"Engine": Engine}, flags, config))

    command.main(list(arguments), standalone_mode=False)
    return got[0]


def test_without_flags_the_defaults_hold():
    assert loaded() == Engine()


def test_a_flag_becomes_its_setting():
    settings = loaded("--block-size", "8", "--kv-memory", "1GiB", "--no-prefix-caching", "--runner", "numpy")
    assert settings == Engine(block_size=8, kv_memory=1 << 30, prefix_caching=False, runner="numpy")


def test_flags_win_over_environment_over_file(tmp_path, monkeypatch):
    config = tmp_path / "server.toml"
    config.write_text("block-size = 1\nprefix_caching = false\nrunner = 'numpy'\n")
    monkeypatch.setenv("ULLAGE_BLOCK_SIZE", "2")
    monkeypatch.setenv("ULLAGE_RUNNER", "native")

    assert loaded("--block-size", "3", config=config) == Engine(block_size=3, prefix_caching=False)
    assert loaded(config=config) == Engine(block_size=2, prefix_caching=False)


def test_a_variable_that_another_command_knows_is_left_alone(monkeypatch):
    monkeypatch.setenv("ULLAGE_PORT", "9000")
    monkeypatch.setenv("ULLAGE_TEMPERATURE", "0")
    assert loaded() == Engine()
    monkeypatch.setenv("ULLAGE_PROT", "9000")
    with pytest.raises(ConfigError) as refused:
        loaded()
    assert refused.value.hint == "did you mean ULLAGE_PORT?"


@pytest.mark.parametrize("arguments", [["--block-size", "0"], ["--block-size", "x"], ["--kv-memory", "1G"]])
def test_a_flag_that_cannot_be_honoured_is_refused(arguments):
    with pytest.raises(ConfigError):
        loaded(*arguments)


def test_the_help_shows_sections_descriptions_and_defaults():
    @click.command(cls=SettingsCommand, sections={"Engine": Engine})
    @click.option("--other", help="Not a setting.")
    def command(**flags): ...

    shown = CliRunner().invoke(command, ["--help"]).output
    assert shown.index("Engine:") < shown.index("--block-size N") < shown.index("Others:") < shown.index("--other")
    assert "Tokens per block.  [default: 16]" in shown
    assert "[default: what is free]" in shown
