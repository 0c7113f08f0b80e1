from __future__ import annotations

import pytest

from ullage.engine import waiting_queue
from ullage.engine.request import Request
from ullage.engine.sampling_params import SamplingParams
from ullage.engine.waiting_queue import WaitingQueue


class Queue(WaitingQueue):
    """With a clock that stands still, and requests by number."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_added = 0
        super().__init__(lambda: self.now)

    def wait(self, tenant: str, num_tokens: int = 10, priority: int = 0, weight: float = 1.0) -> Request:
        request = Request(self.num_added, [1] * num_tokens, num_tokens, SamplingParams(), seed=0)
        request.tenant, request.priority, request.weight = tenant, priority, weight
        self.num_added += 1
        self.add(request)
        return request

    def start_first(self) -> str:
        request = self.first
        self.start(request)
        return request.tenant

    def starts(self, count: int) -> str:
        return "".join(self.start_first() for _ in range(count))


def test_one_tenant_is_served_in_the_order_of_arrival():
    queue = Queue()
    requests = [queue.wait("a") for _ in range(4)]
    assert list(queue) == requests
    assert (len(queue), queue.num_by_priority()) == (4, {0: 4})


def test_a_lower_class_goes_first_whoever_came_before():
    queue = Queue()
    late, normal, urgent = queue.wait("a", priority=5), queue.wait("a"), queue.wait("b", priority=-1)
    assert list(queue) == [urgent, normal, late]
    assert queue.num_by_priority() == {5: 1, 0: 1, -1: 1}


def test_tenants_take_turns_however_many_requests_one_has():
    queue = Queue()
    for _ in range(6):
        queue.wait("a")
    for _ in range(3):
        queue.wait("b")
    assert queue.starts(6) == "ababab"


def test_turns_are_counted_in_tokens_and_output_counts_double():
    queue = Queue()
    for _ in range(9):
        queue.wait("a", 30)
        queue.wait("b", 10)
    assert queue.starts(8) == "abbbabbb"
    a = queue.wait("a")
    before = queue.tenant_of(a).counter
    queue.charge_output_token(a)
    assert queue.tenant_of(a).counter == before + 2


def test_a_weight_of_two_is_served_twice_as_much():
    queue = Queue()
    for _ in range(9):
        queue.wait("a", weight=2.0)
        queue.wait("b")
    assert sorted(queue.starts(9)) == sorted("aaaaaabbb")


def test_idle_time_is_not_saved_up():
    queue = Queue()
    for _ in range(30):
        queue.wait("a")
    queue.starts(10)
    for _ in range(10):
        queue.wait("b")
    assert queue.starts(8) in ("abababab", "babababa")


def test_one_who_leaves_and_comes_back_finds_its_old_debt():
    queue = Queue()
    big = queue.wait("a", 1000)
    queue.wait("b", 10)
    queue.starts(2)
    queue.end(big)
    for _ in range(5):
        queue.wait("b")
        queue.wait("a")
    assert queue.starts(5) == "bbbbb"


def test_an_idle_tenant_is_forgotten_when_too_many_others_were_here_since(monkeypatch):
    monkeypatch.setattr(waiting_queue, "MAX_IDLE_TENANTS", 3)
    queue = Queue()
    for i in range(50):
        queue.remove(queue.wait(f"tenant {i}"))
    assert len(queue._idle) == 3
    assert not queue._tenants
    assert queue.num_by_priority() == {}


def test_a_preempted_request_keeps_its_place_before_new_ones_and_is_not_charged_twice():
    queue = Queue()
    first, second = queue.wait("a"), queue.wait("a")
    queue.wait("b", 1)
    for request in (first, second):
        queue.start(request)
        request.num_preemptions = 1
    counter = queue.tenant_of(first).counter
    queue.put_back(second)
    queue.put_back(first)
    assert list(queue)[:2] == [first, second]
    queue.start(first)
    assert queue.tenant_of(first).counter == counter


def test_who_looks_past_the_first_meets_each_tenant_before_anyones_second():
    queue = Queue()
    a = [queue.wait("a") for _ in range(3)]
    b = [queue.wait("b") for _ in range(2)]
    assert list(queue) == [a[0], b[0], a[1], b[1], a[2]]


def test_shares_are_those_of_all_who_are_present():
    queue = Queue()
    a, b = queue.wait("a"), queue.wait("b", weight=3.0)
    tenant = queue.tenant_of(a)
    assert queue.share_of(tenant) == 0.25
    queue.remove(b)
    assert queue.share_of(tenant) == 0.25  # it may be back at once
    queue.now = waiting_queue.PRESENT_SECONDS + 1
    assert queue.share_of(tenant) == 1.0


@pytest.mark.parametrize("end", ["remove", "end"])
def test_nothing_is_left_of_requests_that_ended(end):
    queue = Queue()
    request = queue.wait("a")
    if end == "end":
        queue.start(request)
    getattr(queue, end)(request)
    assert (len(queue), queue.first, queue._tenants, queue._classes) == (0, None, {}, {})
