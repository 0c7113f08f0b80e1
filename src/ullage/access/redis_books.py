"""Tenants' books in Redis, for several servers that share limits and quotas."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from ullage.access.book_store import UNAVAILABLE, Change
from ullage.access.books import Books
from ullage.base.errors import AccessStoreError, ConfigError

if TYPE_CHECKING:
    import redis

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

KEY_PREFIX = "ullage:books:"
KEPT_SECONDS = 40 * 86400
"""A tenant of whom nothing was heard for longer than a month has nothing that counts any more."""
TIMEOUT_SECONDS = 1.0
MAX_TRIES = 200
"""A try fails only when another server changed the same tenant's books just then, so one of them always gets on."""

REPLACE = """
if redis.call('GET', KEYS[1]) == (ARGV[1] ~= '' and ARGV[1]) then
    redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
    return 1
end
return 0
"""
"""Keeps new books if the old ones are still those that were read. No books are an empty text.

Should the answer get lost on its way, the change is tried again on books that have it already
(``Books.has_change``).
"""


def connect(url: str, password: str | None) -> redis.Redis:
    """Doesn't talk to the server yet.

    :raises ConfigError: the library is missing, or that is no address
    """
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError:
        raise ConfigError("a store in Redis needs its library", hint="pip install 'ullage[redis]'") from None
    try:
        return redis.Redis.from_url(
            url,
            password=password,
            socket_timeout=TIMEOUT_SECONDS,
            socket_connect_timeout=TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), 1),  # a connection that went stale; everybody waits behind a longer try
        )
    except ValueError as error:
        raise ConfigError(f"that is no address of Redis: {error}", hint="like redis://host:6379/0") from error


class RedisBooks:
    """Time is Redis's own, so that servers whose clocks differ agree."""

    def __init__(self, client: redis.Redis) -> None:
        """:raises ConfigError: the server doesn't answer"""
        import redis

        self._client = client
        self._failures = redis.RedisError
        self._replace = client.register_script(REPLACE)
        try:
            client.ping()
        except redis.RedisError as error:
            raise ConfigError(f"Redis can't be used: {error}", hint="see access_store") from error

    def update(self, tenant: str, change: Change[Result]) -> Result:
        key = KEY_PREFIX + tenant
        try:
            for _ in range(MAX_TRIES):
                with self._client.pipeline(transaction=False) as pipe:
                    pipe.get(key)
                    pipe.time()
                    data, (seconds, microseconds) = pipe.execute()
                books = Books.decode(data) if data else Books()
                result = change(books, seconds + microseconds / 1e6)
                if self._replace(keys=[key], args=[data or b"", books.encode(), KEPT_SECONDS]):
                    return result
        except (self._failures, ValueError) as error:
            logger.error("Redis fails: %s", error)
            raise AccessStoreError(UNAVAILABLE) from error
        logger.error("too many servers change the books of one tenant at once")
        raise AccessStoreError(UNAVAILABLE)

    def close(self) -> None:
        self._client.close()
