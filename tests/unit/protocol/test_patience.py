from __future__ import annotations

from ullage.protocol.patience import Patience


def test_a_client_that_takes_nothing_uses_it_up():
    patience = Patience(60.0, 1000)
    patience.wait(0.0, 0)
    assert patience.left_seconds == 60.0
    patience.wait(60.0, 0)
    assert patience.left_seconds == 0.0


def test_a_drip_now_and_then_does_not_keep_a_place():
    patience = Patience(60.0, 1000)
    for i in range(7):
        patience.wait(i * 10.0, i * 10)
        patience.go_on(i * 10.0 + 9.9, i * 10 + 5)
    assert patience.left_seconds < 0.0


def test_a_slow_and_steady_reader_is_waited_for_without_end():
    patience = Patience(60.0, 1000)
    for i in range(1000):
        patience.wait(i * 10.0, i * 10_001)
    assert patience.left_seconds > 49.0


def test_what_is_taken_while_nobody_waits_counts_too_but_earns_no_more_than_the_whole():
    patience = Patience(60.0, 1000)
    patience.wait(0.0, 0)
    patience.go_on(50.0, 0)
    patience.wait(1000.0, 20_000)
    assert patience.left_seconds == 30.0
    patience.wait(1000.0, 1_000_000)
    assert patience.left_seconds == 60.0


def test_it_is_whole_again_for_the_next_answer():
    patience = Patience(60.0, 1000)
    patience.wait(0.0, 0)
    patience.go_on(50.0, 0)
    patience.renew()
    assert patience.left_seconds == 60.0
