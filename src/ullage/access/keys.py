"""API keys: what one is, how its secret is checked, and the SQLite file that holds them.

A key reads ``ullage-ID-SECRET``. The id finds the row; the secret is 256 random bits, of which only the SHA-256 is
stored. A plain hash is enough: slow hashes protect secrets that people choose, and nobody can guess 256 random bits.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ullage.base.errors import AccessStoreError, AuthenticationError, ConfigError

ROUTE_GROUPS = ("inference", "observe", "admin")
KEY_PATTERN = re.compile(r"ullage-([0-9a-f]{16})-([0-9a-f]{64})")
BUSY_TIMEOUT_SECONDS = 5.0
REFUSAL = "the API key is missing, malformed, wrong, expired or revoked"
"""One text for every case: it tells neither which ids exist nor what was sent."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS api_keys (
    id TEXT PRIMARY KEY, digest BLOB NOT NULL, tenant TEXT NOT NULL, name TEXT NOT NULL, route_groups TEXT NOT NULL,
    created_at REAL NOT NULL, expires_at REAL, revoked_at REAL, models TEXT NOT NULL DEFAULT '[]'
) STRICT
"""
ADD_MODELS = "ALTER TABLE api_keys ADD COLUMN models TEXT NOT NULL DEFAULT '[]'"
"""To a file that was made before keys had models."""
COLUMNS = "id, tenant, name, route_groups, created_at, expires_at, revoked_at, models"

FIND = f"""
SELECT digest, {COLUMNS} FROM api_keys WHERE id = ?
UNION ALL SELECT zeroblob(32), '', '', '', '', 0.0, NULL, NULL, '[]' LIMIT 1
"""
"""An unknown id finds a key that no secret opens, so that it costs the same work as a wrong secret."""

Row = tuple[str, str, str, str, float, float | None, float | None, str]


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is known of a key; its secret isn't. Times are seconds since 1970."""

    id: str
    tenant: str
    name: str
    route_groups: tuple[str, ...]
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    models: tuple[str, ...] = ()
    """Names that it may use; empty: all."""

    def may_use(self, model: str) -> bool:
        return not self.models or model in self.models

    def is_valid(self, now: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class KeyStore:
    """The file of keys. Each call opens it anew, so several processes and threads may use one; calls may block.

    ``KeyReader`` is for who checks many keys.
    """

    def __init__(self, path: Path) -> None:
        """:raises ConfigError: the file can't be made or read"""
        self._path = path
        try:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            path.chmod(0o600)
            with self._database() as database:
                database.execute("PRAGMA journal_mode=WAL")
                database.execute("BEGIN IMMEDIATE")
                database.execute(SCHEMA)
                if "models" not in [row[1] for row in database.execute("PRAGMA table_info(api_keys)")]:
                    database.execute(ADD_MODELS)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"can't use {path} as the file of API keys: {error}") from error

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_SECONDS)) as database, database:
            yield database

    def create(
        self,
        tenant: str,
        name: str,
        route_groups: tuple[str, ...],
        expires_at: float | None = None,
        models: tuple[str, ...] = (),
    ) -> tuple[ApiKey, str]:
        """The new key and its text, which can't be had again.

        :param models: names that it may use; empty: all
        :raises ConfigError: no tenant, an unknown route group, or a model without a name
        """
        if not tenant or not route_groups or not set(route_groups) <= set(ROUTE_GROUPS):
            raise ConfigError("a key needs a tenant and route groups", hint=f"groups are {', '.join(ROUTE_GROUPS)}")
        if not all(models):
            raise ConfigError("a model of a key needs a name", hint="see GET /v1/models of the server")
        key = ApiKey(secrets.token_hex(8), tenant, name, route_groups, time.time(), expires_at, None, models)
        secret = secrets.token_hex(32)
        row = (key.id, _digest(secret), tenant, name, ",".join(route_groups), key.created_at, expires_at)
        with self._database() as database:
            database.execute("INSERT INTO api_keys VALUES (?, ?, ?, ?, ?, ?, ?, NULL, ?)", (*row, json.dumps(models)))
        return key, f"ullage-{key.id}-{secret}"

    def list(self) -> list[ApiKey]:
        """All keys, the oldest first."""
        with self._database() as database:
            rows = database.execute(f"SELECT {COLUMNS} FROM api_keys ORDER BY created_at").fetchall()
        return [_key(row) for row in rows]

    def revoke(self, key_id: str) -> None:
        """:raises ConfigError: there is no such key"""
        statement = "UPDATE api_keys SET revoked_at = coalesce(revoked_at, ?) WHERE id = ?"
        with self._database() as database:
            if database.execute(statement, (time.time(), key_id)).rowcount == 0:
                raise ConfigError("there is no API key of that id", hint="see: ullage keys list")

    def reader(self) -> KeyReader:
        return KeyReader(self._path)

    def check(self, text: str) -> ApiKey:
        """As ``KeyReader.check``."""
        with closing(self.reader()) as reader:
            return reader.check(text)


class KeyReader:
    """Checks keys over one open connection, which sees at once what others write. For one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        """Device and inode of the file that is open."""

    def check(self, text: str) -> ApiKey:
        """The key of this text.

        :raises AuthenticationError: it isn't a valid key
        :raises AccessStoreError: the file can't be read: nobody knows
        """
        match = KEY_PATTERN.fullmatch(text)
        key_id, secret = match.groups() if match else ("", "")
        try:
            row = self._open_file().execute(FIND, (key_id,)).fetchone()
        except (OSError, sqlite3.Error):
            self.close()
            raise AccessStoreError("the API keys can't be read now") from None
        is_right = hmac.compare_digest(_digest(secret), row[0])
        key = _key(row[1:])
        if not is_right or not key.is_valid(time.time()):
            raise AuthenticationError(REFUSAL)
        return key

    def close(self) -> None:
        """Idempotent; a check opens the file again."""
        if self._database is not None:
            self._database.close()
        self._database = None

    def _open_file(self) -> sqlite3.Connection:
        """The file that has the name now: a file that was replaced or deleted must not go on to let people in."""
        status = self._path.stat()
        file = status.st_dev, status.st_ino
        if self._database is None or file != self._file:
            self.close()
            self._database = sqlite3.connect(
                f"{self._path.absolute().as_uri()}?mode=rw",  # never makes the file
                uri=True,
                timeout=BUSY_TIMEOUT_SECONDS,
                isolation_level=None,
            )
            self._file = file
        return self._database


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _key(row: Row) -> ApiKey:
    key_id, tenant, name, groups, created_at, expires_at, revoked_at, models = row
    return ApiKey(
        key_id, tenant, name, tuple(groups.split(",")), created_at, expires_at, revoked_at, tuple(json.loads(models))
    )
