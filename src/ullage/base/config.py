"""Settings: a frozen dataclass per room, filled once from a file, the environment and the command line.

A field made with ``setting`` carries the sentence that the help, the README's table and the error messages show, so a
setting is described in one place. Flags win over the environment, the environment over the file; whatever none of them
names keeps its default. A name nobody knows and a value that can't be honoured are errors.
"""

from __future__ import annotations

import difflib
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from ullage.base.byte_sizes import format_bytes, parse_bytes
from ullage.base.errors import ConfigError

ENV_PREFIX = "ULLAGE_"
ENV_OTHERS = ("ULLAGE_HOME", "ULLAGE_DEBUG", "ULLAGE_API_KEY")
"""Environment variables that are not settings of a server; nor are those of the tests."""
ENV_TESTS = "ULLAGE_TEST_"
ENV_FILE = "_FILE"
"""Behind the name of a secret: the path of a file that holds it."""

Source = Literal["default", "file", "environment", "flag"]

Value = TypeVar("Value")
Settings = TypeVar("Settings")


def setting(
    default: Value,
    description: str,
    *,
    shown_default: str = "",
    in_bytes: bool = False,
    at_least: float | None = None,
    secret: bool = False,
) -> Value:
    """A dataclass field that is a setting.

    :param description: one sentence with the unit, for the help
    :param shown_default: what the default means, where the value alone doesn't say it (``None``)
    :param in_bytes: the value is a size; people write it like ``64MiB``
    :param at_least: the smallest value that can be honoured
    :param secret: never shown, and taken only from ``ULLAGE_NAME`` or from the file that ``ULLAGE_NAME_FILE`` names:
        configuration files are passed around, and every user of a machine sees flags
    """
    metadata = {
        "description": description,
        "shown_default": shown_default,
        "in_bytes": in_bytes,
        "at_least": 0 if in_bytes and at_least is None else at_least,
        "secret": secret,
    }
    result: Value = field(default=default, metadata=metadata)
    return result


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """One setting, ready to be turned into a flag, a row of a table or a check."""

    name: str
    kind: type
    """int, float, bool or str."""
    choices: tuple[str, ...]
    """All values allowed; empty: any."""
    default: Any
    description: str
    shown_default: str
    in_bytes: bool
    at_least: float | None
    secret: bool

    @property
    def env_names(self) -> tuple[str, ...]:
        name = ENV_PREFIX + self.name.upper()
        return (name, name + ENV_FILE) if self.secret else (name,)

    @property
    def default_text(self) -> str:
        if self.shown_default:
            return self.shown_default
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        return format_bytes(self.default) if self.in_bytes else str(self.default)


def settings_of(cls: type) -> dict[str, SettingInfo]:
    """The settings of a dataclass, in order, by name. Fields not made with ``setting`` are left out."""
    hints = typing.get_type_hints(cls)
    infos = (_describe(f, hints[f.name]) for f in fields(cls) if "description" in f.metadata)
    return {info.name: info for info in infos}


def setting_values(*instances: Any) -> dict[str, Any]:
    """The settings of some instances, by name."""
    return {name: getattr(instance, name) for instance in instances for name in settings_of(type(instance))}


def _describe(f: Field[Any], hint: Any) -> SettingInfo:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):  # ``int | None``: None is only ever the default
        (hint,) = (arg for arg in typing.get_args(hint) if arg is not type(None))
    is_choice = typing.get_origin(hint) is Literal
    assert f.default is not MISSING, f"{f.name} needs a default"
    return SettingInfo(
        name=f.name,
        kind=str if is_choice else hint,
        choices=typing.get_args(hint) if is_choice else (),
        default=f.default,
        **f.metadata,
    )


def load_settings(
    cls: type[Settings],
    *,
    file: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Settings:
    """An instance of ``cls`` from the three sources. Flags that are None were not given.

    Keys of other dataclasses are not looked at here: see ``check_known_names``.

    :raises ConfigError: a value that can't be honoured; the message says where it came from
    """
    found = {
        name: given
        for name, info in settings_of(cls).items()
        if (given := load_setting(info, file=file or {}, environ=environ or {}, flags=flags or {})) is not None
    }
    return cls(**{name: given.value for name, given in found.items()})


@dataclass(frozen=True, slots=True)
class GivenSetting:
    """What somebody set."""

    value: Any
    source: Source


def load_setting(
    info: SettingInfo, *, file: Mapping[str, object], environ: Mapping[str, str], flags: Mapping[str, object]
) -> GivenSetting | None:
    """None: nobody has set it, its default holds.

    :raises ConfigError: as ``load_settings``
    """
    name = info.name
    if info.secret and (name in file or flags.get(name) is not None):
        hint = f"set {info.env_names[0]}, or {info.env_names[1]} to the path of a file that holds it"
        raise ConfigError(f"{name} is a secret: it has no place in a configuration file or among flags", hint=hint)
    if flags.get(name) is not None:
        return GivenSetting(_convert(info, flags[name], f"--{name.replace('_', '-')}"), "flag")
    for env_name in info.env_names:
        if env_name in environ:
            raw = _read_secret(environ[env_name], env_name) if env_name != info.env_names[0] else environ[env_name]
            return GivenSetting(_convert(info, raw, env_name), "environment")
    if name in file:
        return GivenSetting(_convert(info, file[name], f"{name} in the configuration file"), "file")
    return None


def _read_secret(path: str, env_name: str) -> str:
    try:
        return Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file that {env_name} names can't be read: {error}") from error


def settings_from_arguments(cls: type[Settings], arguments: Mapping[str, object]) -> Settings:
    """An instance of ``cls`` from keyword arguments of a Python call.

    :raises ConfigError: an unknown name, or a value that can't be honoured
    """
    infos = settings_of(cls)
    check_known_names(arguments, infos, where="the call")
    return cls(**{name: _convert(infos[name], raw, name) for name, raw in arguments.items() if raw is not None})


def read_config_file(path: Path, known: Iterable[str]) -> dict[str, object]:
    """A TOML file of ``name = value`` lines. Names are those of the flags, with ``-`` or ``_``.

    :raises ConfigError: not readable, not TOML, or a name that isn't in ``known``
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}", hint="lines look like max_model_len = 2048") from error
    values: dict[str, object] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name in values:
            raise ConfigError(f"{path} sets {name} twice", hint="keep one spelling")
        values[name] = value
    check_known_names(values, known, where=str(path))
    return values


def check_environment(environ: Mapping[str, str], known: Iterable[str]) -> None:
    """:raises ConfigError: a variable ``ULLAGE_...`` that is no setting; a typing error must not pass in silence"""
    names = [
        name
        for name in environ
        if name.startswith(ENV_PREFIX) and name not in ENV_OTHERS and not name.startswith(ENV_TESTS)
    ]
    check_known_names(names, [ENV_PREFIX + name.upper() for name in known], where="the environment")


def check_known_names(names: Iterable[str], known: Iterable[str], *, where: str) -> None:
    """:raises ConfigError: names the first unknown one and the nearest known one"""
    known = list(known)
    for name in names:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {nearest[0]}?" if nearest else "known are: " + ", ".join(sorted(known))
            raise ConfigError(f"{where} sets {name}, which is no setting", hint=hint)


def _convert(info: SettingInfo, raw: object, source: str) -> object:
    """The value in the setting's type. Text is parsed; other types must fit as they are."""
    value: object
    if info.in_bytes and isinstance(raw, str):
        value = parse_bytes(raw)
    elif info.kind is bool:
        value = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}.get(str(raw).lower())
    elif isinstance(raw, bool):  # True is an int to Python, not to a person
        value = None
    elif isinstance(raw, str) and info.kind in (int, float):
        value = _parse_number(info.kind, raw)
    elif info.kind is float and isinstance(raw, int):
        value = _parse_number(float, raw)
    else:
        value = raw if isinstance(raw, info.kind) else None
    if isinstance(value, float) and not math.isfinite(value):  # no bound would hold: NaN is neither below nor above it
        value = None
    if value is None:
        raise ConfigError(f"{source} must be {_kind_in_words(info)}, got {raw!r}")
    if info.choices and value not in info.choices:
        raise ConfigError(f"{source} must be one of {', '.join(info.choices)}, got {raw!r}")
    if info.at_least is not None and cast(float, value) < info.at_least:
        raise ConfigError(f"{source} must be at least {info.at_least}, got {raw!r}")
    return value


def _parse_number(kind: type, raw: str | int) -> object:
    try:
        return kind(raw)
    except (ValueError, OverflowError):
        return None


def _kind_in_words(info: SettingInfo) -> str:
    if info.in_bytes:
        return "a size like 64MiB"
    return {int: "a whole number", float: "a finite number", bool: "true or false", str: "text"}[info.kind]
