"""Which replica gets the next request.

Among the replicas that have less than their fair share of the running requests, which is

    ceil((running + 1) * weight / all weights),

the smooth weighted round robin of nginx chooses: each replica adds its weight to its credit, the largest credit wins
and pays the sum of the weights. There is always such a replica. So the shares of the requests are those of the weights
while replicas are equally fast, even when one request runs at a time; a slow replica gets fewer, because it is full,
and its credit doesn't grow beyond one request.

With a sticky key the replicas stand in an order of their own for each key (rendezvous hashing with weights:
Schindelhauer and Schomaker, 2005), and the first that has less than ``slack`` times its fair share is taken
(consistent hashing with bounded loads: Mirrokni, Thorup and Zadimoghaddam, 2016).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence

from ullage.gateway.replica import Replica


class Rotation:
    """:param slack: at least 1; by how much a sticky key may go beyond the fair share"""

    def __init__(self, replicas: Sequence[Replica] = (), *, slack: float = 1.25) -> None:
        self.replicas = tuple(replicas)
        self._slack = slack
        self._credits: dict[Replica, float] = {}

    def replace(self, replicas: Sequence[Replica]) -> None:
        self.replicas = tuple(replicas)
        self._credits = {replica: credit for replica, credit in self._credits.items() if replica in replicas}

    @property
    def num_in_rotation(self) -> int:
        return sum(replica.state in ("up", "warming", "trial") for replica in self.replicas)

    def choose(self, *, key: bytes | None = None, without: Collection[Replica] = ()) -> Replica | None:
        """None: no replica is left.

        :param without: those that were tried already
        """
        weights = {r: weight for r in self.replicas if r not in without and (weight := r.weight) > 0}
        if not weights:
            return None
        if key is not None:
            room = with_room(weights, self._slack)
            return min(room, key=lambda replica: _distance(key, replica))
        room = with_room(weights, 1.0)
        price = sum(weights.values())
        for replica, weight in weights.items():
            self._credits[replica] = min(self._credits.get(replica, 0.0) + weight, price)
        chosen = max(room, key=lambda replica: self._credits[replica])
        self._credits[chosen] -= price
        return chosen


def with_room(weights: dict[Replica, float], slack: float) -> dict[Replica, float]:
    """Those of the replicas that have less than ``slack`` times their fair share of the running requests."""
    all_weights = sum(weights.values())
    num_running = sum(replica.num_outstanding for replica in weights)

    def bound(weight: float) -> int:
        return math.ceil(slack * (num_running + 1) * weight / all_weights - 1e-9)  # a whole number stays one

    room = {replica: weight for replica, weight in weights.items() if replica.num_outstanding < bound(weight)}
    assert room, "the bounds add up to more than what runs"
    return room


def _distance(key: bytes, replica: Replica) -> float:
    """Exponentially distributed with the rate of the weight, so the least is each one's with its share of all keys."""
    digest = hashlib.blake2b(replica.config.name.encode() + b"\0" + key, digest_size=8).digest()
    return -math.log((int.from_bytes(digest) + 1) / (2**64 + 1)) / replica.config.weight
