"""Where tenants' books are kept: in this process, in an SQLite file, or in Redis (``redis_books.py``).

A store does one thing: it lets a change see a tenant's books, and keeps what the change makes of them, with nothing in
between. What the counts mean stands in ``books.py`` alone.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from ullage.access.books import Books
from ullage.base.errors import AccessStoreError, ConfigError

Result = TypeVar("Result")

Change = Callable[[Books, float], Result]
"""Given the books and the time; may change them. When it raises, nothing has happened."""

BUSY_TIMEOUT_SECONDS = 1.0
UNAVAILABLE = "limits and quotas can't be counted now"
"""All that clients are told; why, is in the log."""

logger = logging.getLogger(__name__)


class BookStore(Protocol):
    """Used from one thread; calls may block, for some seconds at most."""

    def update(self, tenant: str, change: Change[Result]) -> Result:
        """
        :raises AccessStoreError: the store doesn't answer; nothing was kept
        """
        ...

    def close(self) -> None: ...


class MemoryBooks:
    """Of one process, and gone with it."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._books: dict[str, bytes] = {}
        self._clock = clock

    def update(self, tenant: str, change: Change[Result]) -> Result:
        books = Books.decode(self._books[tenant]) if tenant in self._books else Books()
        result = change(books, self._clock())
        self._books[tenant] = books.encode()
        return result

    def close(self) -> None:
        pass


class SqliteBooks:
    """A file that the processes of one machine may share. A change that was kept survives the process; the last ones
    before a power cut may be lost."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """:raises ConfigError: the file can't be made or used"""
        self._clock = clock
        self._path = path
        self._database: sqlite3.Connection | None = None
        try:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            with self._open() as database:
                database.execute("PRAGMA journal_mode=WAL")
                database.execute(
                    "CREATE TABLE IF NOT EXISTS books (tenant TEXT PRIMARY KEY, counts BLOB NOT NULL) STRICT"
                )
            database.close()
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"can't use {path} to count limits and quotas: {error}") from error

    def update(self, tenant: str, change: Change[Result]) -> Result:
        try:
            if self._database is None:
                self._database = self._open()
            self._database.execute("BEGIN IMMEDIATE")
            with self._database:  # commits, or takes everything back
                row = self._database.execute("SELECT counts FROM books WHERE tenant = ?", (tenant,)).fetchone()
                books = Books() if row is None else Books.decode(row[0])
                result = change(books, self._clock())
                self._database.execute("REPLACE INTO books VALUES (?, ?)", (tenant, books.encode()))
        except (sqlite3.Error, ValueError) as error:
            self.close()
            logger.error("%s can't be used: %s", self._path, error)
            raise AccessStoreError(UNAVAILABLE) from error
        return result

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _open(self) -> sqlite3.Connection:
        """For the thread that calls: SQLite's connections are bound to theirs."""
        database = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None)
        database.execute("PRAGMA synchronous=NORMAL")
        return database
