"""Limits and quotas of all tenants, as the service uses them: reserved before a request runs, settled when it ended.

Books are changed on a thread of their own, one change after another, so the event loop never waits for a file or for
Redis. When the store fails, nobody comes in; what ended meanwhile is settled later, and counts in full until then.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qs, urlsplit

from ullage.access.book_store import BookStore, MemoryBooks, SqliteBooks
from ullage.access.books import Books, Holding, Reserved, Standing
from ullage.access.config import AccessConfig
from ullage.access.limits import Limits, TenantLimits, read_limits
from ullage.base.errors import AccessStoreError, ConfigError
from ullage.base.secret_file import read_secret

Result = TypeVar("Result")

RENEW_SECONDS = 15.0
"""Well within the lease that books give a server."""

logger = logging.getLogger(__name__)


def open_allowances(config: AccessConfig) -> Allowances | None:
    """None: nothing is limited.

    :raises ConfigError: limits or store can't be had
    """
    check_limits(config)
    return None if config.limits_file is None else Allowances(Path(config.limits_file), open_store(config))


def check_limits(config: AccessConfig) -> None:
    """All that can be said without the store.

    :raises ConfigError: what limits and store say can't be honoured
    """
    where = config.access_store
    if where is not None and config.limits_file is None:
        raise ConfigError("access_store has nothing to count", hint="set limits_file as well")
    if config.redis_password_file is not None:
        if not is_redis(where):
            raise ConfigError("redis_password_file is set, but access_store is no Redis")
        read_secret(Path(config.redis_password_file))
    if where is not None and is_redis(where):
        address = urlsplit(where)
        if address.password or "password" in parse_qs(address.query):
            raise ConfigError("access_store holds a password", hint="put it into a file and set redis_password_file")
    if config.limits_file is not None:
        read_limits_for(config.limits_file, has_store=where is not None)


def read_limits_for(file: str | Path, *, has_store: bool) -> Limits:
    """:raises ConfigError: they can't be honoured"""
    limits = read_limits(Path(file))
    if limits.has_quotas and not has_store:
        hint = "set access_store to a file or to a Redis"
        raise ConfigError("quotas of a day or month must outlive the server: they need a store", hint=hint)
    return limits


def is_redis(where: str | None) -> bool:
    return where is not None and re.match(r"(rediss?|unix)://", where) is not None


def open_store(config: AccessConfig) -> BookStore:
    """:raises ConfigError: it can't be had"""
    where, file = config.access_store, config.redis_password_file
    if where is None:
        return MemoryBooks()
    if not is_redis(where):
        return SqliteBooks(Path(where))
    from ullage.access.redis_books import RedisBooks, connect

    return RedisBooks(connect(where, None if file is None else read_secret(Path(file))))


@dataclass(frozen=True, slots=True)
class Ended:
    """A reservation's end, to be written into the books."""

    tenant: str
    reserved: Reserved
    num_used: int | None
    """None: it never began."""
    change: int
    """Number of the change that this is in the books."""

    def write(self, server: str, books: Books, now: float) -> None:
        if books.has_change(server, self.change):
            return
        books.note_change(server, self.change, now)
        if self.num_used is None:
            books.release(server, self.reserved, now)
        else:
            books.settle(server, self.reserved, self.num_used, now)


class Reservation:
    """One request's. Must be settled or released, once; what comes later does nothing."""

    def __init__(self, allowances: Allowances, tenant: str, reserved: Reserved, standing: Standing) -> None:
        self.standing = standing
        self._allowances = allowances
        self._tenant = tenant
        self._reserved = reserved
        self._open = True

    def settle(self, num_used: int) -> None:
        """The request ended.

        :param num_used: tokens, at most those reserved
        """
        assert 0 <= num_used <= self._reserved.num_tokens, "a request used more than it reserved"
        self._end(num_used)

    def release(self) -> None:
        """The request didn't begin: it costs nothing."""
        self._end(None)

    def _end(self, num_used: int | None) -> None:
        if self._open:
            self._open = False
            self._allowances.end(self._tenant, self._reserved, num_used)


class Allowances:
    """Belongs to one event loop; what is said to belong to the thread is touched there alone.

    :param path: the limits file
    :raises ConfigError: it can't be honoured
    """

    def __init__(self, path: Path, store: BookStore) -> None:
        self._store = store
        self.limits = Limits()
        self.prepare(path)()
        self._server = secrets.token_hex(8)
        """What this server is called in the books."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="allowances")
        self._held: dict[str, Holding] = {}
        """What each tenant has reserved here and not settled. Belongs to the thread."""
        self._unsettled: list[Ended] = []
        """While the store fails. Bounded by what was reserved before it did. Belongs to the thread."""
        self._num_changes = 0
        """Belongs to the thread."""
        self._renewing: asyncio.Task[None] | None = None

    def of(self, tenant: str) -> TenantLimits:
        return self.limits.of(tenant)

    def prepare(self, path: Path) -> Callable[[], None]:
        """Reads a limits file. What is returned puts it in force, for requests that begin from then on; counts stay.

        :raises ConfigError: it can't be honoured
        """
        limits = read_limits_for(path, has_store=not isinstance(self._store, MemoryBooks))
        return lambda: setattr(self, "limits", limits)

    async def check(self, tenant: str) -> None:
        """Whether the tenant's next request could begin, before any work is done for it; ``reserve`` decides.

        :raises RateLimitError, QuotaExceededError, AccessStoreError: it couldn't
        """
        limits = self.of(tenant)
        await self._on_thread(self._store.update, tenant, lambda books, now: books.check(limits, now))

    async def reserve(self, tenant: str, num_tokens: int) -> Reservation:
        """:param num_tokens: the most that the request can use

        :raises InvalidRequestError, RateLimitError, QuotaExceededError, AccessStoreError: nothing was counted
        """
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew_leases())
        reserving = asyncio.ensure_future(self._on_thread(self._reserve, tenant, num_tokens))
        try:
            reserved, standing = await asyncio.shield(reserving)
        except asyncio.CancelledError:
            reserving.add_done_callback(lambda done: self._forget(tenant, done))
            raise
        return Reservation(self, tenant, reserved, standing)

    async def standing(self, tenant: str) -> tuple[Standing, dict[str, int]]:
        """What is left of the minute, and tokens used in this day and month.

        :raises AccessStoreError: the store doesn't answer
        """
        limits = self.of(tenant)
        return await self._on_thread(
            self._store.update, tenant, lambda books, now: (books.standing(limits, now), dict(books.periods))
        )

    def end(self, tenant: str, reserved: Reserved, num_used: int | None) -> None:
        """Settles or releases on the thread, in order; nobody waits for it."""
        with suppress(RuntimeError):  # closed: the lease counts it in full
            self._thread.submit(self._end, tenant, reserved, num_used)

    async def close(self) -> None:
        """Settles what has ended, then closes the store. Idempotent."""
        if self._renewing is not None:
            self._renewing.cancel()
        with suppress(RuntimeError):  # closed before
            self._thread.submit(self._settle_late)
            self._thread.submit(self._store.close)
        await asyncio.to_thread(self._thread.shutdown)

    # ── on the thread ──

    def _reserve(self, tenant: str, num_tokens: int) -> tuple[Reserved, Standing]:
        limits, change, kept = self.of(tenant), self._next_change(), list[tuple[Reserved, Standing]]()
        if self._unsettled:  # in order: a number that is passed over is never written
            self._settle_late()

        def reserve(books: Books, now: float) -> tuple[Reserved, Standing]:
            if not books.has_change(self._server, change):
                reserved = books.reserve(limits, self._server, num_tokens, now)
                books.note_change(self._server, change, now)
                kept.append((reserved, books.standing(limits, now)))
            return kept[-1]

        reserved, standing = self._store.update(tenant, reserve)
        held = self._held.setdefault(tenant, Holding(0, 0, 0.0, 0.0))
        held.num_requests += 1
        held.num_tokens += num_tokens
        return reserved, standing

    def _next_change(self) -> int:
        self._num_changes += 1
        return self._num_changes

    def _end(self, tenant: str, reserved: Reserved, num_used: int | None) -> None:
        self._unsettled.append(Ended(tenant, reserved, num_used, self._next_change()))
        self._settle_late()
        if self._unsettled:
            logger.warning("%d requests that ended are settled later", len(self._unsettled))

    def _write(self, ended: Ended) -> None:
        """:raises AccessStoreError: not written"""
        self._store.update(ended.tenant, partial(ended.write, self._server))
        held = self._held[ended.tenant]
        held.num_requests -= 1
        held.num_tokens -= ended.reserved.num_tokens
        if not held.num_requests:
            del self._held[ended.tenant]

    def _settle_late(self) -> None:
        """As far as the store lets it."""
        with suppress(AccessStoreError):
            while self._unsettled:
                self._write(self._unsettled[0])
                del self._unsettled[0]

    def _renew(self) -> None:
        self._settle_late()
        with suppress(AccessStoreError):
            for tenant, held in self._held.items():
                self._store.update(tenant, partial(_renew, self._server, held))

    # ── parts ──

    async def _on_thread(self, function: Callable[..., Result], *args: object) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    def _forget(self, tenant: str, reserving: asyncio.Future[tuple[Reserved, Standing]]) -> None:
        """It was counted, but nobody waits for it any more."""
        if not reserving.cancelled() and reserving.exception() is None:
            reserved, _ = reserving.result()
            self.end(tenant, reserved, None)

    async def _renew_leases(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            await self._on_thread(self._renew)


def _renew(server: str, held: Holding, books: Books, now: float) -> None:
    books.renew(server, held.num_requests, held.num_tokens, now)
