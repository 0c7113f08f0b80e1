"""The memory ledger: named accounts in bytes, from the plan to the bill.

The planner writes what each account may hold; the engine allocates from it and from nowhere else; the KV cache books
what requests reserve and use. Three statements hold at any moment and can be checked: *allocated ≤ planned* (and equal
once the engine is up), *reserved ≤ kv_pool*, *used ≤ reserved*.
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from ullage.base.errors import EngineError, PlanError

ACCOUNTS = ("weights", "kv_pool", "workspace", "logits", "runtime", "headroom")
"""In the order they are shown. ``runtime`` is the interpreter and its libraries, ``headroom`` what must stay free."""

ALLOCATED_ACCOUNTS = ("weights", "kv_pool", "workspace", "logits")
"""Those whose bytes are handed out by ``allocate``; the others are measured."""


_HUGE_PAGE_BYTES = 2 << 20
_MADV_POPULATE_WRITE = 23  # <linux/mman.h>; Python has no name for it


@dataclass(frozen=True, slots=True)
class AccountSnapshot:
    planned_bytes: int
    allocated_bytes: int


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """A consistent reading of the whole ledger."""

    accounts: Mapping[str, AccountSnapshot]
    kv_reserved_bytes: int
    """KV bytes of blocks that belong to requests."""
    kv_used_bytes: int
    """KV bytes of tokens actually written for those requests."""
    kv_cached_bytes: int
    """KV bytes of free blocks that still hold a reusable prefix."""


def _resident_memory(num_bytes: int) -> memoryview:
    """Memory that is there now, not when it is first touched: a promise that can't be kept must fail at the start.

    :raises PlanError: the system refuses
    """
    try:
        memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if num_bytes >= _HUGE_PAGE_BYTES:
            with suppress(OSError):  # a kernel without transparent huge pages
                memory.madvise(mmap.MADV_HUGEPAGE)
        _populate(memory)
    except (OSError, OverflowError) as error:
        raise PlanError(
            f"the system refused {num_bytes} bytes of memory: {error}", hint="lower kv_memory, or free some memory"
        ) from error
    return memoryview(memory)


def _populate(memory: mmap.mmap) -> None:
    try:
        memory.madvise(_MADV_POPULATE_WRITE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # Linux before 5.14: touch every page
        memoryview(memory)[:: mmap.PAGESIZE] = bytes(-(-len(memory) // mmap.PAGESIZE))


class MemoryLedger:
    """Owns the byte counts of one engine, and the memory behind ``ALLOCATED_ACCOUNTS``.

    Used by one thread at a time (the engine's); ``snapshot`` may be called from any.
    """

    def __init__(self, planned: Mapping[str, int]) -> None:
        unknown = set(planned) - set(ACCOUNTS)
        assert not unknown, f"unknown accounts: {unknown}"
        self._planned = {account: planned.get(account, 0) for account in ACCOUNTS}
        self._allocated = dict.fromkeys(ACCOUNTS, 0)
        self._kv_books = (0, 0, 0)

    def allocate(self, account: str, num_bytes: int) -> memoryview:
        """Zeroed, page-aligned memory, on huge pages where the system gives them, resident from now on.

        :raises EngineError: the account would exceed its plan
        :raises PlanError: the system doesn't have what was planned
        """
        assert account in ALLOCATED_ACCOUNTS
        assert num_bytes >= 0
        total = self._allocated[account] + num_bytes
        if total > self._planned[account]:
            raise EngineError(f"{account}: allocating {total} bytes, but the plan has {self._planned[account]}")
        self._allocated[account] = total
        if num_bytes == 0:
            return memoryview(bytearray())
        return _resident_memory(num_bytes)

    def record(self, account: str, num_bytes: int) -> None:
        """Books a measured figure for an account that isn't allocated here."""
        assert account not in ALLOCATED_ACCOUNTS
        self._allocated[account] = num_bytes

    def check_complete(self) -> None:
        """Called once the engine is built.

        :raises EngineError: an account was not allocated to the byte as planned
        """
        for account in ALLOCATED_ACCOUNTS:
            if self._allocated[account] != self._planned[account]:
                raise EngineError(
                    f"{account}: planned {self._planned[account]} bytes, allocated {self._allocated[account]}"
                )

    def book_kv(self, *, reserved_bytes: int, used_bytes: int, cached_bytes: int) -> None:
        """Books the state of the KV pool after a change.

        :raises EngineError: the books don't balance (a bug, never a user's mistake)
        """
        if not 0 <= used_bytes <= reserved_bytes <= reserved_bytes + cached_bytes <= self._planned["kv_pool"]:
            raise EngineError(
                f"KV books don't balance: used {used_bytes} <= reserved {reserved_bytes}, "
                f"reserved + cached {reserved_bytes + cached_bytes} <= pool {self._planned['kv_pool']}"
            )
        self._kv_books = (reserved_bytes, used_bytes, cached_bytes)  # one assignment: a snapshot never sees half of it

    def snapshot(self) -> LedgerSnapshot:
        reserved_bytes, used_bytes, cached_bytes = self._kv_books
        return LedgerSnapshot(
            accounts={a: AccountSnapshot(self._planned[a], self._allocated[a]) for a in ACCOUNTS},
            kv_reserved_bytes=reserved_bytes,
            kv_used_bytes=used_bytes,
            kv_cached_bytes=cached_bytes,
        )
