from __future__ import annotations

import pytest

from ullage.gateway.config import GatewayConfig
from ullage.gateway.replica import Outcome, Replica
from ullage.gateway.replica_file import ReplicaConfig

RULES = GatewayConfig(
    health_failures=2,
    ejection_failures=3,
    ejection_error_rate=0.5,
    error_window_seconds=30.0,
    ejection_seconds=10.0,
    max_ejection_seconds=25.0,
    slow_start_seconds=20.0,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def up_replica() -> tuple[Replica, Clock]:
    clock = Clock()
    replica = Replica(ReplicaConfig("a", "http://a", 4.0), RULES, clock)
    replica.probe_passed()
    return replica, clock


def ends(replica: Replica, *outcomes: Outcome) -> None:
    for outcome in outcomes:
        replica.request_began().end(outcome, "a reason")


def test_nothing_goes_to_a_replica_of_which_nothing_is_known():
    replica = Replica(ReplicaConfig("a", "http://a"), RULES, Clock())
    assert (replica.state, replica.weight) == ("unknown", 0.0)
    replica.probe_passed()
    assert (replica.state, replica.weight) == ("up", 1.0)


def test_a_probe_that_fails_takes_it_out_and_a_silent_one_only_the_second_time():
    replica, _ = up_replica()
    replica.probe_was_silent()
    assert replica.state == "up"
    replica.probe_passed()
    replica.probe_was_silent()
    assert replica.state == "up"
    replica.probe_was_silent()
    assert (replica.state, replica.weight) == ("down", 0.0)

    replica, _ = up_replica()
    replica.probe_failed("it drains")
    assert (replica.state, replica.reason) == ("down", "it drains")


def test_one_that_was_silent_from_the_start_is_down():
    replica = Replica(ReplicaConfig("a", "http://a"), RULES, Clock())
    replica.probe_was_silent()
    assert replica.state == "down"


def test_one_that_comes_back_gets_its_weight_little_by_little():
    replica, clock = up_replica()
    replica.probe_failed("it restarts")
    replica.probe_passed()
    assert (replica.state, replica.weight) == ("warming", pytest.approx(0.4))
    clock.now += 10
    assert replica.weight == pytest.approx(2.0)
    replica.probe_passed()  # later ones don't begin anew
    clock.now += 10
    assert (replica.state, replica.weight) == ("up", 4.0)


@pytest.mark.parametrize("failure", ["failed", "unreachable", "timeout", "cut"])
def test_failures_in_a_row_eject_it(failure):
    replica, _ = up_replica()
    ends(replica, failure, failure)
    assert replica.state == "up"
    ends(replica, failure)
    assert (replica.state, replica.weight) == ("ejected", 0.0)
    assert replica.reason == "ejected for 10 s, lastly because a reason"
    replica.probe_passed()  # says nothing of requests
    assert replica.state == "ejected"
    assert "ejected" in replica.reason


def test_half_of_all_requests_eject_it_and_fewer_do_not():
    replica, _ = up_replica()
    ends(replica, *["ok", "failed"] * 2, "ok", "failed")
    assert replica.state == "ejected"
    replica, _ = up_replica()
    ends(replica, *["ok", "ok", "failed"] * 20)
    assert replica.state == "up"


def test_failures_of_long_ago_are_forgotten():
    replica, clock = up_replica()
    for _ in range(10):
        ends(replica, "failed", "ok")
        clock.now += 31
    assert replica.state == "up"


def test_what_says_nothing_of_the_replica_changes_nothing():
    replica, _ = up_replica()
    ends(replica, "failed", "failed", *["abandoned", "busy", "not_taken"] * 5)
    assert replica.state == "up"
    ends(replica, "failed")
    assert replica.state == "ejected"


def test_after_its_time_it_is_tried_with_one_request():
    replica, clock = up_replica()
    ends(replica, *["failed"] * 3)
    clock.now += 10
    assert (replica.state, replica.weight) == ("trial", pytest.approx(0.4))
    turn = replica.request_began()
    assert (replica.state, replica.weight) == ("trial", 0.0)
    turn.end("ok")
    assert replica.state == "warming"


def test_each_failed_trial_ejects_it_for_twice_as_long_up_to_a_bound():
    replica, clock = up_replica()
    ends(replica, *["failed"] * 3)
    for seconds in (10, 20, 25, 25):
        clock.now += seconds - 0.1
        assert replica.state == "ejected"
        clock.now += 0.2
        assert replica.state == "trial"
        ends(replica, "timeout")


def test_one_that_is_up_again_begins_with_the_shortest_ejection():
    replica, clock = up_replica()
    ends(replica, *["failed"] * 3)
    clock.now += 10
    ends(replica, "failed")
    clock.now += 20
    ends(replica, "ok")
    clock.now += 20
    ends(replica, "ok", *["failed"] * 3)
    assert replica.reason.startswith("ejected for 10 s")


def test_failures_of_what_ran_when_it_was_ejected_do_not_eject_it_again():
    replica, clock = up_replica()
    turns = [replica.request_began() for _ in range(10)]
    for turn in turns:
        turn.end("failed", "a reason")
    clock.now += 10
    assert replica.state == "trial"


def test_a_turn_ends_once():
    replica, _ = up_replica()
    turn = replica.request_began()
    assert replica.num_outstanding == 1
    turn.end("ok")
    turn.end("failed")
    assert replica.num_outstanding == 0
    assert (turn.outcome, replica.counts["ok"], replica.counts["failed"]) == ("ok", 1, 0)
