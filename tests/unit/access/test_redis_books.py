"""Books in a Redis that loses an answer: what was changed already isn't changed again."""

from __future__ import annotations

import asyncio

import redis

from ullage.access.allowances import Allowances
from ullage.access.redis_books import RedisBooks


class Pipeline:
    def __init__(self, server: LossyRedis) -> None:
        self._server = server
        self._key = ""

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def get(self, key: str) -> None:
        self._key = key

    def time(self) -> None:
        pass

    def execute(self) -> tuple[bytes | None, tuple[int, int]]:
        return self._server.books.get(self._key), (1_800_000_000, 0)


class LossyRedis:
    """Keeps what it is sent. When told to, it loses its answer: once, so that the client sends again, or for good."""

    def __init__(self) -> None:
        self.books: dict[str, bytes] = {}
        self.loses: list[str] = []

    def ping(self) -> None:
        pass

    def close(self) -> None:
        pass

    def pipeline(self, transaction: bool) -> Pipeline:
        return Pipeline(self)

    def register_script(self, script: str):
        return self._replace

    def _replace(self, keys: list[str], args: list[bytes]) -> int:
        is_same = (self.books.get(keys[0]) or b"") == args[0]
        if is_same:
            self.books[keys[0]] = args[1]
        loss = self.loses.pop(0) if self.loses else None
        if loss == "for good":
            raise redis.TimeoutError("lost")
        return 0 if loss == "sent again" else int(is_same)


async def settle_two(tmp_path, loses: list[str]) -> dict[str, int]:
    """Tokens that two requests of 30 and 40 are charged, when answers to their reservations and ends get lost so."""
    (tmp_path / "limits.toml").write_text("[default]\ntokens_per_minute = 100")
    server = LossyRedis()
    allowances = Allowances(tmp_path / "limits.toml", RedisBooks(server))
    server.loses = loses
    first, second = await allowances.reserve("a", 50), await allowances.reserve("a", 50)
    first.settle(30)
    second.settle(40)
    _, periods = await allowances.standing("a")
    allowances._thread.submit(allowances._settle_late).result()
    standing, periods = await allowances.standing("a")
    assert not allowances._held
    await allowances.close()
    assert standing.tokens_left == 100 - sum(set(periods.values()))
    return periods


def test_a_change_whose_answer_got_lost_is_made_once(tmp_path):
    for loses in ([], ["sent again"], ["", "sent again"], ["", "", "sent again"], ["", "", "", "sent again"]):
        assert set(asyncio.run(settle_two(tmp_path, loses)).values()) == {70}


def test_an_end_that_failed_for_good_and_was_kept_all_the_same_is_settled_once(tmp_path):
    for loses in (["", "", "for good"], ["", "", "for good", "for good"], ["", "", "", "for good"]):
        assert set(asyncio.run(settle_two(tmp_path, loses)).values()) == {70}
