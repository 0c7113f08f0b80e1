"""A real redis-server of the test's own, on a socket in a temporary folder."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

START_SECONDS = 10.0


@contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[str]:
    """The address of its database 0."""
    program = shutil.which("redis-server")
    assert program, "these tests need redis-server: apt-get install redis-server"
    socket = folder / "redis.sock"
    options = ("--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder), *options)
    with subprocess.Popen([program, *options], stdout=subprocess.DEVNULL) as process:
        try:
            client = redis.Redis(unix_socket_path=str(socket), retry=Retry(NoBackoff(), 0))
            deadline = time.monotonic() + START_SECONDS
            while not answers(client):
                assert process.poll() is None, "redis-server ended"
                assert time.monotonic() < deadline, "redis-server doesn't answer"
                time.sleep(0.01)
            client.close()
            yield f"unix://{socket}"
        finally:
            process.kill()


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.AuthenticationError:
        return True
    except redis.ConnectionError:
        return False
