from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.gateway.config import GatewayConfig
from ullage.gateway.replica import Replica, Turn
from ullage.gateway.replica_file import ReplicaConfig
from ullage.gateway.rotation import Rotation


def replicas(*weights: float) -> list[Replica]:
    made = []
    for name, weight in zip("abcdefgh", weights, strict=False):
        replica = Replica(ReplicaConfig(name, f"http://{name}", weight), GatewayConfig(), lambda: 0.0)
        replica.probe_passed()
        made.append(replica)
    return made


def shares(rotation: Rotation, num_requests: int, num_at_once: int, seed: int = 0) -> Counter[str]:
    """How often each replica is chosen when so many requests run at a time and end in any order."""
    random = Random(seed)
    running: list[Turn] = []
    chosen: Counter[str] = Counter()
    for _ in range(num_requests):
        if len(running) == num_at_once:
            running.pop(random.randrange(num_at_once)).end("ok")
        replica = rotation.choose()
        assert replica is not None
        chosen[replica.config.name] += 1
        running.append(replica.request_began())
    return chosen


@pytest.mark.parametrize("num_at_once", [1, 2, 7, 20, 100])
def test_a_canary_of_five_in_a_hundred_gets_its_share(num_at_once):
    chosen = shares(Rotation(replicas(95, 5)), 2000, num_at_once)
    assert abs(chosen["b"] - 100) <= 20


def test_one_after_another_the_shares_are_exact():
    assert shares(Rotation(replicas(95, 5)), 2000, 1) == {"a": 1900, "b": 100}
    assert shares(Rotation(replicas(3, 2, 1)), 600, 1) == {"a": 300, "b": 200, "c": 100}


def test_light_ones_are_spread_between_heavy_ones():
    rotation = Rotation(replicas(5, 1, 1))
    order = "".join(replica.config.name for _ in range(7) if (replica := rotation.choose()))
    assert order == "aabacaa"  # the example of nginx's authors


def test_equal_replicas_have_equally_many_requests():
    a, b = replicas(1, 1)
    rotation = Rotation([a, b])
    for _ in range(5):
        a.request_began()
    for _ in range(5):
        chosen = rotation.choose()
        assert chosen is b
        chosen.request_began()


def test_a_replica_that_never_ends_a_request_gets_no_more_than_its_part():
    slow, quick = replicas(1, 1)
    rotation = Rotation([slow, quick])
    quick_turns: list[Turn] = []
    for _ in range(200):
        chosen = rotation.choose()
        assert chosen is not None
        turn = chosen.request_began()
        if chosen is quick:
            quick_turns.append(turn)
        while len(quick_turns) > 4:
            quick_turns.pop(0).end("ok")
    assert slow.num_outstanding <= 6


@given(
    st.lists(st.tuples(st.floats(1e-3, 1e3), st.integers(0, 300)), min_size=1, max_size=8),
    st.floats(1.0, 3.0),
    st.binary(max_size=8) | st.none(),
)
def test_there_is_always_a_replica_below_its_bound(rows, slack, key):
    made = replicas(*(weight for weight, _ in rows))
    for replica, (_, num_running) in zip(made, rows, strict=True):
        replica.num_outstanding = num_running
    assert Rotation(made, slack=slack).choose(key=key) in made


def test_those_that_are_out_or_were_tried_are_not_chosen():
    a, b, c = replicas(1, 1, 1)
    b.probe_failed("gone")
    rotation = Rotation([a, b, c])
    assert {rotation.choose(without=[a]) for _ in range(5)} == {c}
    assert rotation.choose(without=[a, c]) is None
    assert rotation.num_in_rotation == 2


def test_a_key_finds_the_same_replica_and_keys_are_spread_by_weight():
    rotation = Rotation(replicas(3, 1))
    homes = {key: rotation.choose(key=b"%d" % key) for key in range(2000)}
    assert all(rotation.choose(key=b"%d" % key) is home for key, home in homes.items())
    heavy = sum(home is not None and home.config.name == "a" for home in homes.values())
    assert 1400 <= heavy <= 1600


def test_when_a_replica_leaves_only_its_own_keys_move():
    made = replicas(1, 1, 1)
    rotation = Rotation(made)
    before = {key: rotation.choose(key=b"%d" % key) for key in range(300)}
    rotation.replace(made[:2])
    after = {key: rotation.choose(key=b"%d" % key) for key in range(300)}
    assert all(after[key] is home for key, home in before.items() if home is not made[2])


def test_a_key_whose_replica_is_full_goes_on_to_another():
    made = replicas(1, 1)
    rotation = Rotation(made, slack=1.25)
    home = rotation.choose(key=b"k")
    assert home is not None
    for _ in range(10):
        home.request_began()
    assert rotation.choose(key=b"k") is not home
