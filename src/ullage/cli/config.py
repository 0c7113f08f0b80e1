"""``ullage config check``: what a server would be told, and what is wrong with it, without starting one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ullage.base.byte_sizes import format_bytes
from ullage.base.config import (
    GivenSetting,
    SettingInfo,
    check_environment,
    load_setting,
    read_config_file,
    settings_of,
)
from ullage.base.errors import UllageError
from ullage.cli.settings import EVERY_NAME, SERVE
from ullage.cli.settings_flags import SettingsCommand

if TYPE_CHECKING:
    from ullage.access.config import AccessConfig
    from ullage.engine.build import EngineOptions
    from ullage.service.config import ServiceConfig

WRONG_EXIT_CODE = 2


@click.group()
def config() -> None:
    """Check a configuration before a server gets it."""


@config.command(cls=SettingsCommand, sections=SERVE)
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--model", help="Also look whether this model would be found and fits this machine's memory.")
def check(file: Path | None, model: str | None, **flags: object) -> int:
    """Say what ullage serve would make of FILE, of the environment and of flags: each setting, its value, and where it
    comes from. Exit code 0: a server would take it; 2: it wouldn't, and all that is wrong is told.
    """
    checked = Checked()
    checked.read(file, flags)
    if not checked.errors:
        checked.look_further(model)
    for line in checked.lines():
        click.echo(line)
    for error in checked.errors:
        click.echo(f"error: {error.message}", err=True)
        if error.hint:
            click.echo(f"hint: {error.hint}", err=True)
    return WRONG_EXIT_CODE if checked.errors else 0


@dataclass(slots=True)
class Checked:
    """What has been found."""

    errors: list[UllageError] = field(default_factory=list)
    given: dict[str, GivenSetting] = field(default_factory=dict)
    instances: dict[str, Any] = field(default_factory=dict)
    """By heading, as in ``SERVE``."""

    def read(self, path: Path | None, flags: Mapping[str, object]) -> None:
        """Each setting by itself, so that one mistake doesn't hide the others."""
        known = {name for cls in SERVE.values() for name in settings_of(cls)}
        file = self._try(lambda: read_config_file(path, known)) if path else {}
        self._try(lambda: check_environment(os.environ, EVERY_NAME | known))
        for heading, cls in SERVE.items():
            num_errors = len(self.errors)
            for name, info in settings_of(cls).items():
                self._read_setting(name, info, file or {}, flags)
            if len(self.errors) == num_errors:
                values = {name: self.given[name].value for name in settings_of(cls) if name in self.given}
                self.instances[heading] = self._try(lambda cls=cls, values=values: cls(**values))  # type: ignore[misc]

    def _read_setting(
        self, name: str, info: SettingInfo, file: Mapping[str, object], flags: Mapping[str, object]
    ) -> None:
        given = self._try(lambda: load_setting(info, file=file, environ=os.environ, flags=flags))
        if given is not None:
            self.given[name] = given

    def look_further(self, model: str | None) -> None:
        """What a server would look at before it takes a request; nothing is made or changed."""
        from ullage.engine.build import choose_runner, make_plan_request, scheduler_config

        options: EngineOptions = self.instances["Engine"]
        service: ServiceConfig = self.instances["Service"]
        self._try(lambda: scheduler_config(options, options.max_model_len or 1))
        self._try(lambda: make_plan_request(options, choose_runner(options.runner)[0]))
        if service.otlp_endpoint is not None:
            from ullage.service.tracing import check_tracing

            self._try(lambda: check_tracing(service))
        from ullage.access.allowances import check_limits
        from ullage.service.tls import server_context

        access: AccessConfig = self.instances["Access"]
        self._try(lambda: server_context(service))
        self._try(lambda: check_limits(access))
        keys_file = access.api_keys_file
        if keys_file is not None:
            self._try(lambda: _check_keys_file(Path(keys_file)))
        if model is not None and not self.errors:
            self._try(lambda: _check_model(model, options))

    def _try(self, function: Callable[[], Any]) -> Any:
        """None after an error, which is kept."""
        try:
            return function()
        except UllageError as error:
            self.errors.append(error)
            return None

    def lines(self) -> list[str]:
        """``name = value  # where from``, in columns."""
        rows = [self._row(info) for cls in SERVE.values() for info in settings_of(cls).values()]
        widths = [max(len(row[i]) for row in rows) for i in range(2)]
        return [f"{name:<{widths[0]}} = {value:<{widths[1]}}  # {source}" for name, value, source in rows]

    def _row(self, info: SettingInfo) -> tuple[str, str, str]:
        given = self.given.get(info.name)
        if given is None:
            return info.name, info.default_text, "default"
        if info.secret:
            return info.name, "(set)", given.source
        if isinstance(given.value, bool):
            return info.name, "on" if given.value else "off", given.source
        return info.name, format_bytes(given.value) if info.in_bytes else str(given.value), given.source


def _check_keys_file(path: Path) -> None:
    from ullage.access.keys import KeyStore
    from ullage.base.errors import ConfigError

    if path.exists():
        KeyStore(path)
    elif not path.parent.is_dir():
        raise ConfigError(f"there is no folder for the file of API keys: {path.parent}")


def _check_model(name: str, options: EngineOptions) -> None:
    """:raises UllageError: it isn't there, can't be run, or doesn't fit"""
    from ullage.engine.build import check_tokenizer, choose_runner, make_plan_request, plan_engine
    from ullage.models.open_model import open_model
    from ullage.models.store import find_model

    model = open_model(find_model(name))
    try:
        check_tokenizer(model.path, model.tokenizer(), model.spec)
        plan_engine(model, make_plan_request(options, choose_runner(options.runner)[0]))
    finally:
        model.close()
