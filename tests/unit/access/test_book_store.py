from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from ullage.access.book_store import BookStore, MemoryBooks, SqliteBooks
from ullage.access.books import Books
from ullage.access.limits import TenantLimits
from ullage.base.errors import AccessStoreError, ConfigError, RateLimitError

LIMITS = TenantLimits(tokens_per_minute=100)


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    store: BookStore = MemoryBooks() if request.param == "memory" else SqliteBooks(tmp_path / "books.db")
    yield store
    store.close()


def test_a_change_is_kept_and_one_that_raises_is_not(store):
    store.update("a", lambda books, now: books.reserve(LIMITS, "s", 60, now))

    def count_then_fail(books: Books, now: float) -> None:
        books.reserve(LIMITS, "s", 30, now)
        raise RateLimitError("no", retry_after_seconds=1)

    with pytest.raises(RateLimitError):
        store.update("a", count_then_fail)
    assert store.update("a", lambda books, _: books.num_minute_tokens) == 60
    assert store.update("b", lambda books, _: books.num_minute_tokens) == 0


def test_a_file_keeps_its_books_for_the_next_server(tmp_path):
    first = SqliteBooks(tmp_path / "books.db")
    first.update("a", lambda books, now: books.reserve(LIMITS, "s", 60, now))
    first.close()
    with closing(SqliteBooks(tmp_path / "books.db")) as second:
        assert second.update("a", lambda books, _: books.num_reserved_tokens) == 60
    assert (tmp_path / "books.db").stat().st_mode & 0o077 == 0


def test_servers_that_share_a_file_never_count_over_each_other(tmp_path):
    def use(_: int) -> int:
        with closing(SqliteBooks(tmp_path / "books.db")) as store:
            num_accepted = 0
            for _ in range(50):
                try:
                    store.update("a", lambda books, now: books.reserve(LIMITS, "s", 1, now))
                except RateLimitError:
                    continue
                num_accepted += 1
            return num_accepted

    SqliteBooks(tmp_path / "books.db").close()
    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(use, range(4))) == 100


def test_a_file_that_is_no_store_is_refused_at_once(tmp_path):
    (tmp_path / "books.db").write_text("no database " * 100)
    with pytest.raises(ConfigError, match="can't use"):
        SqliteBooks(tmp_path / "books.db")
    with pytest.raises(ConfigError, match="can't use"):
        SqliteBooks(tmp_path / "no" / "books.db")


def test_a_locked_file_is_an_error_that_passes(tmp_path, monkeypatch):
    monkeypatch.setattr("ullage.access.book_store.BUSY_TIMEOUT_SECONDS", 0.01)
    with closing(SqliteBooks(tmp_path / "books.db")) as store:
        with closing(sqlite3.connect(tmp_path / "books.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(AccessStoreError):
                store.update("a", lambda books, now: None)
        assert store.update("a", lambda books, _: books.num_running) == 0


def test_books_that_somebody_damaged_are_an_error_not_a_fresh_start(tmp_path):
    with closing(SqliteBooks(tmp_path / "books.db")) as store:
        store.update("a", lambda books, now: books.reserve(LIMITS, "s", 60, now))
        with closing(sqlite3.connect(tmp_path / "books.db")) as other, other:
            other.execute("UPDATE books SET counts = x'ff00'")
        with pytest.raises(AccessStoreError):
            store.update("a", lambda books, now: None)
