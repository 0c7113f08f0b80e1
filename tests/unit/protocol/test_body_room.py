from __future__ import annotations

import pytest

from ullage.base.errors import QueueFullError
from ullage.protocol.body_room import BodyRoom


def test_bodies_share_the_room_and_give_it_back_whatever_happens():
    room = BodyRoom(10)
    with room.body() as take, room.body() as take_other:
        take(4)
        take_other(6)
        with pytest.raises(QueueFullError):
            take(1)
    with pytest.raises(QueueFullError), room.body() as take:
        take(11)
    with room.body() as take:
        take(10)
