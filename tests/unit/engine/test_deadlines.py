from __future__ import annotations

from ullage.engine.deadlines import MOST_ENDED, Deadlines
from ullage.engine.request import Request
from ullage.engine.sampling_params import SamplingParams


def make_request(request_id: int, deadline: float) -> Request:
    return Request(request_id, [1], 1, SamplingParams(), seed=0, deadline=deadline)


def test_each_is_late_once_when_its_time_is_up():
    requests = {i: make_request(i, deadline) for i, deadline in enumerate([5.0, 3.0, 9.0, float("inf")])}
    deadlines = Deadlines(requests)
    for request in requests.values():
        deadlines.add(request)
    assert deadlines.take_expired(2.9) == []
    assert deadlines.take_expired(5.0) == [requests[1], requests[0]]
    assert deadlines.take_expired(5.0) == []
    del requests[2]
    assert deadlines.take_expired(100.0) == []


def test_requests_that_ended_in_time_do_not_pile_up():
    requests: dict[int, Request] = {}
    deadlines = Deadlines(requests)
    for i in range(1000):
        requests[i] = make_request(i, 1e9)
        deadlines.add(requests[i])
        del requests[i]
    assert len(deadlines) <= MOST_ENDED + 1
