from __future__ import annotations

import mmap

import pytest

from ullage.base.errors import EngineError, PlanError
from ullage.plan.ledger import MemoryLedger
from ullage.plan.machine import resident_bytes

PLANNED = {"weights": 1000, "kv_pool": 640, "workspace": 0, "logits": 16}


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger(PLANNED)


def test_memory_is_zeroed_writable_and_of_the_size_asked_for(ledger):
    memory = ledger.allocate("weights", 1000)
    assert bytes(memory) == bytes(1000)
    memory[999] = 7
    assert memory[999] == 7


def test_an_account_may_be_taken_in_pieces_up_to_its_plan(ledger):
    ledger.allocate("weights", 400)
    ledger.allocate("weights", 600)
    with pytest.raises(EngineError, match="weights: allocating 1001 bytes, but the plan has 1000"):
        ledger.allocate("weights", 1)


def test_a_refused_allocation_leaves_the_books_as_they_were(ledger):
    with pytest.raises(EngineError):
        ledger.allocate("logits", 17)
    ledger.allocate("logits", 16)


def test_a_byte_less_than_planned_stops_the_start(ledger):
    ledger.allocate("weights", 1000)
    ledger.allocate("kv_pool", 639)
    ledger.allocate("logits", 16)
    with pytest.raises(EngineError, match="kv_pool: planned 640 bytes, allocated 639"):
        ledger.check_complete()
    ledger.allocate("kv_pool", 1)
    ledger.check_complete()


def test_nothing_planned_needs_nothing_allocated(ledger):
    assert len(ledger.allocate("workspace", 0)) == 0


def test_memory_is_resident_from_the_start():
    num_bytes = 64 << 20
    before = resident_bytes()
    memory = MemoryLedger({"kv_pool": num_bytes}).allocate("kv_pool", num_bytes)
    assert resident_bytes() - before > 0.9 * num_bytes
    assert len(memory) == num_bytes


def test_where_the_system_cannot_populate_every_page_is_touched(monkeypatch):
    monkeypatch.setattr("ullage.plan.ledger._MADV_POPULATE_WRITE", 9999)
    num_bytes = (64 << 20) + 5
    before = resident_bytes()
    memory = MemoryLedger({"kv_pool": num_bytes}).allocate("kv_pool", num_bytes)
    assert resident_bytes() - before > 0.9 * num_bytes
    assert memory[num_bytes - 1] == 0
    assert num_bytes % mmap.PAGESIZE == 5


@pytest.mark.parametrize(
    ("reserved", "used", "cached"),
    [(100, 101, 0), (641, 0, 0), (600, 0, 41), (0, -1, 0), (10, 0, -1)],
    ids=["used > reserved", "reserved > pool", "reserved + cached > pool", "used < 0", "cached < 0"],
)
def test_books_that_do_not_balance_are_refused(ledger, reserved, used, cached):
    ledger.book_kv(reserved_bytes=64, used_bytes=10, cached_bytes=128)
    with pytest.raises(EngineError, match="don't balance"):
        ledger.book_kv(reserved_bytes=reserved, used_bytes=used, cached_bytes=cached)
    snapshot = ledger.snapshot()
    assert (snapshot.kv_reserved_bytes, snapshot.kv_used_bytes, snapshot.kv_cached_bytes) == (64, 10, 128)


def test_a_snapshot_shows_plan_and_allocation_and_does_not_change(ledger):
    ledger.allocate("weights", 400)
    ledger.record("runtime", 12345)
    snapshot = ledger.snapshot()
    ledger.allocate("weights", 600)
    assert (snapshot.accounts["weights"].planned_bytes, snapshot.accounts["weights"].allocated_bytes) == (1000, 400)
    assert snapshot.accounts["runtime"].allocated_bytes == 12345
    assert list(snapshot.accounts) == ["weights", "kv_pool", "workspace", "logits", "runtime", "headroom"]


@pytest.mark.parametrize("num_bytes", [1 << 60, 1 << 70])
def test_memory_that_the_system_refuses_is_an_error_with_a_hint(num_bytes):
    with pytest.raises(PlanError, match=f"refused {num_bytes} bytes") as error:
        MemoryLedger({"kv_pool": num_bytes}).allocate("kv_pool", num_bytes)
    assert "kv_memory" in error.value.hint
