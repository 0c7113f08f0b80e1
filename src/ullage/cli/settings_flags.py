"""Flags made from settings, so that a flag's help and default are the setting's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ullage.base.config import SettingInfo, check_environment, load_settings, read_config_file, settings_of
from ullage.cli.settings import EVERY_NAME


class SettingsCommand(click.Command):
    """A command with a flag for each setting of some classes, secrets apart. One that isn't given arrives as None.

    :param sections: heading in the help -> the class whose settings stand under it
    """

    def __init__(self, *, sections: Mapping[str, type], params: list[click.Parameter], **others: Any) -> None:
        self._sections = {title: list(settings_of(cls).values()) for title, cls in sections.items()}
        flags = [_flag(info) for infos in self._sections.values() for info in infos if not info.secret]
        super().__init__(params=[*params, *flags], **others)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [parameter for parameter in self.get_params(ctx) if isinstance(parameter, click.Option)]
        records = {option.name: option.get_help_record(ctx) for option in options}
        for title, infos in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([record for info in infos if (record := records.pop(info.name, None))])
        with formatter.section("Others"):
            formatter.write_dl([record for record in records.values() if record])


def load_all(sections: Mapping[str, type], flags: Mapping[str, object], config_path: Path | None = None) -> list[Any]:
    """An instance of each class from file, environment and flags. The file is of this command alone.

    :raises ConfigError: an unknown name, or a value that can't be honoured
    """
    known = {name for cls in sections.values() for name in settings_of(cls)}
    check_environment(os.environ, EVERY_NAME | known)
    file = read_config_file(config_path, known) if config_path else {}
    return [load_settings(cls, file=file, environ=os.environ, flags=flags) for cls in sections.values()]


def _flag(info: SettingInfo) -> click.Option:
    flag = info.name.replace("_", "-")
    spelling = f"--{flag}/--no-{flag}" if info.kind is bool else f"--{flag}"
    return click.Option([info.name, spelling], default=None, help=_help(info), **_type(info))


def _type(info: SettingInfo) -> dict[str, Any]:
    if info.kind is bool:
        return {}
    if info.choices:
        return {"type": click.Choice(info.choices)}
    metavar = "SIZE" if info.in_bytes else {int: "N", float: "NUMBER", str: "TEXT"}[info.kind]
    return {"type": str, "metavar": metavar}  # load_settings converts: one rule for flags, environment and file


def _help(info: SettingInfo) -> str:
    return f"{info.description}  [default: {info.default_text}]"
