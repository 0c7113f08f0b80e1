from __future__ import annotations

import random

import pytest

from ullage.base.errors import ContextLengthError, KVCapacityError, QueueFullError
from ullage.engine.admission import Admission, Ticket
from ullage.engine.client import GenerationRequest
from ullage.engine.request import RequestLimits
from ullage.engine.sampling_params import SamplingParams
from ullage.engine.scheduler import SchedulerConfig
from ullage.plan.block_demand import BlockDemand

LIMITS = RequestLimits(max_model_len=100, num_blocks=5, demand=BlockDemand(16), vocab_size=50)


def make_admission(**bounds: int) -> Admission:
    return Admission(SchedulerConfig(100, **{"max_num_seqs": 2, "max_waiting_requests": 3, **bounds}), LIMITS)


def accept(admission: Admission, num_tokens: int = 10, tenant: str = "", now: float = 0.0) -> Ticket:
    request = GenerationRequest((1,) * num_tokens, SamplingParams(max_tokens=5), tenant=tenant)
    admission.check(request, now, num_free_blocks=4)
    return admission.accept(request, now)


def refused(admission: Admission, num_tokens: int = 10, tenant: str = "", now: float = 0.0) -> QueueFullError:
    with pytest.raises(QueueFullError) as caught:
        accept(admission, num_tokens, tenant, now)
    return caught.value


def test_seats_and_places_to_wait_are_given_out_and_no_more():
    admission = make_admission()
    tickets = [accept(admission) for _ in range(5)]
    error = refused(admission)
    assert error.message == "the queue is full: 3 requests are waiting, and 3 may"
    admission.ended(tickets[0], 1.0)
    accept(admission)
    assert refused(admission).details["requests_in_work"] == 5


def test_what_can_never_be_served_is_told_before_how_full_it_is():
    admission = make_admission()
    for _ in range(5):
        accept(admission)
    for num_tokens, error in ((96, ContextLengthError), (76, KVCapacityError)):
        with pytest.raises(error) as caught:
            accept(admission, num_tokens)
        assert caught.value.details is not None


def test_waiting_tokens_are_bounded_once_the_seats_are_taken():
    admission = make_admission(max_waiting_tokens=30)
    tickets = [accept(admission, 50) for _ in range(2)]  # more than may wait, but seats are free
    for ticket in tickets:
        admission.started(ticket)
    accept(admission, 40)  # the first to wait may be of any size
    error = refused(admission, 1)
    assert (error.details["bound"], error.details["waiting_tokens"]) == ("max_waiting_tokens", 40)
    assert "40 prompt tokens are waiting, and 30 may" in error.message


def test_one_tenant_does_not_take_all_places():
    admission = make_admission(max_waiting_requests=10, max_waiting_requests_per_tenant=2)
    for _ in range(2):
        admission.started(accept(admission, tenant="a"))
    waiting = [accept(admission, tenant="a") for _ in range(2)]
    assert refused(admission, tenant="a").details["bound"] == "max_waiting_requests_per_tenant"
    accept(admission, tenant="b")
    admission.started(waiting[0])
    accept(admission, tenant="a")


def test_a_tenants_tokens_are_bounded():
    admission = make_admission(max_waiting_requests=10, max_waiting_tokens_per_tenant=20)
    for _ in range(2):
        admission.started(accept(admission, tenant="a"))
    accept(admission, 15, "a")
    assert "15 prompt tokens of this tenant are waiting, and 20 may" in refused(admission, 6, "a").message
    accept(admission, 5, "a")
    accept(admission, 30, "b")


def test_the_answer_says_what_was_needed_and_what_there_is():
    admission = make_admission(max_waiting_tokens=1000)
    for _ in range(5):
        accept(admission)
    assert refused(admission, 30).details == {
        "bound": "max_waiting_requests",
        "blocks_needed": 3,
        "blocks_free": 4,
        "blocks_total": 5,
        "requests_in_work": 5,
        "waiting_requests": 5,
        "waiting_tokens": 50,
        "max_waiting_requests": 3,
        "max_waiting_tokens": 1000,
    }
    assert admission.num_refusals == {"max_waiting_requests": 1}


def test_retry_after_is_the_time_that_an_end_took_lately():
    admission = make_admission()
    tickets = [accept(admission, now=100.0) for _ in range(5)]
    assert refused(admission, now=104.0).retry_after_seconds == 4.0  # nothing ended in all that time
    for i in range(3):
        admission.ended(tickets.pop(), 110.0 + 10 * i)
        tickets.append(accept(admission, now=110.0 + 10 * i))
    assert refused(admission, now=130.0).retry_after_seconds == 30.0 / 4  # one more is due now
    assert refused(admission, now=140.0).retry_after_seconds == 10.0
    assert refused(admission, now=1000.0).retry_after_seconds == 60.0
    for i in range(100):
        admission.ended(tickets.pop(), 1000.0 + i * 3)
        tickets.append(accept(admission, now=1000.0 + i * 3))
    assert refused(admission, now=1300.0).retry_after_seconds == pytest.approx(3.0)


def test_several_at_once_have_room_or_not_as_a_whole():
    admission = make_admission()
    accept(admission)
    admission.check_room("", 4, 4, now=0.0)
    with pytest.raises(QueueFullError):
        admission.check_room("", 5, 5, now=0.0)
    assert admission.num_in_work == 1


def test_starting_and_ending_twice_counts_once():
    admission = make_admission()
    ticket = accept(admission)
    for _ in range(2):
        admission.started(ticket)
    assert (admission.num_waiting, admission.num_in_work) == (0, 1)
    for _ in range(2):
        admission.ended(ticket, 1.0)
        admission.started(ticket)
    assert (admission.num_waiting, admission.num_in_work) == (0, 0)


def test_counts_are_exact_whatever_happens():
    draw = random.Random(0)
    admission = make_admission(max_num_seqs=3, max_waiting_requests=20, max_waiting_tokens=200)
    in_work: dict[Ticket, bool] = {}
    for _ in range(5000):
        action = draw.random()
        if action < 0.5:
            num_waiting = len(in_work) - sum(in_work.values())
            try:
                in_work[accept(admission, draw.randint(1, 40), draw.choice("abc"))] = False
            except QueueFullError:
                assert num_waiting
        elif in_work:
            ticket = draw.choice(list(in_work))
            if action < 0.7:
                admission.started(ticket)
                in_work[ticket] = True
            else:
                admission.ended(ticket, 0.0)
                del in_work[ticket]
        waiting = [ticket for ticket, started in in_work.items() if not started]
        assert (admission.num_in_work, admission.num_waiting) == (len(in_work), len(waiting))
        assert admission._waiting.num_tokens == sum(ticket.num_prompt_tokens for ticket in waiting)
        assert set(admission._by_tenant) == {ticket.tenant for ticket in waiting}
