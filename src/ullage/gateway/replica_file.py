"""The file that names the replicas: TOML, a table ``[[replicas]]`` for each."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from ullage.base.config import check_known_names
from ullage.base.errors import ConfigError

KNOWN = ("name", "url", "weight", "health_path", "health_key_file")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
HEALTH_PATH = "/health/ready"
HINT = 'a replica looks like: [[replicas]] name = "a" url = "http://127.0.0.1:8000" weight = 1'


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """One replica as the file describes it."""

    name: str
    """In metrics and logs."""
    url: str
    """``http://host:port``, without a slash at the end."""
    weight: float = 1.0
    """Its share of the requests, relative to the others' weights."""
    health_path: str = HEALTH_PATH
    health_key: str | None = None
    """API key for that address, where it needs one."""


def read_replicas(path: Path) -> tuple[ReplicaConfig, ...]:
    """:raises ConfigError: the file can't be read, or says something that can't be honoured"""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror}", hint=HINT) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}", hint=HINT) from error
    check_known_names(table, ["replicas"], where=str(path))
    rows = table.get("replicas")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{path} names no replica", hint=HINT)
    replicas = tuple(_replica(row, path) for row in rows)
    for field in ("name", "url"):
        values = [getattr(replica, field) for replica in replicas]
        if twice := {value for value in values if values.count(value) > 1}:
            raise ConfigError(f"{path} has two replicas with the {field} {min(twice)}")
    return replicas


def _replica(row: Mapping[str, object], path: Path) -> ReplicaConfig:
    check_known_names(row, KNOWN, where=f"a replica in {path}")
    name, url, weight = row.get("name"), row.get("url"), row.get("weight", 1.0)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigError(f"{path}: a replica's name must be up to 64 letters, digits, . _ -, got {name!r}", hint=HINT)
    if not isinstance(url, str) or not _is_address(url):
        raise ConfigError(f"{path}: the url of {name} must be like http://host:port, got {url!r}")
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
        raise ConfigError(f"{path}: the weight of {name} must be a number above 0, got {weight!r}")
    health_path = row.get("health_path", HEALTH_PATH)
    if not isinstance(health_path, str) or not _is_path(health_path):
        raise ConfigError(f"{path}: the health_path of {name} must be like {HEALTH_PATH}, got {health_path!r}")
    return ReplicaConfig(
        name, url.rstrip("/"), float(weight), health_path, _key(row.get("health_key_file"), name, path)
    )


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        httpx.URL(url)
        is_plain = not (parts.query or parts.fragment or parts.username) and parts.path in ("", "/")
        return parts.scheme in ("http", "https") and bool(parts.hostname) and is_plain and parts.port != 0
    except (ValueError, httpx.InvalidURL):  # a port or a name that is none
        return False


def _is_path(path: str) -> bool:
    try:
        httpx.URL("http://host").copy_with(raw_path=path.encode("ascii"))
    except (UnicodeEncodeError, httpx.InvalidURL):
        return False
    return path.startswith("/")


def _key(file: object, name: str, path: Path) -> str | None:
    if file is None:
        return None
    if not isinstance(file, str):
        raise ConfigError(f"{path}: the health_key_file of {name} must be the name of a file")
    try:
        key = (path.parent / file).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't read the health_key_file of {name}: {error}") from error
    if not key.isprintable() or not key:
        raise ConfigError(f"{path}: the health_key_file of {name} must hold one line")
    return key
