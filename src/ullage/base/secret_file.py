"""Secrets come from files, never from the command line, where everybody on the machine may read them."""

from __future__ import annotations

from pathlib import Path

from ullage.base.errors import ConfigError

MAX_CHARS = 4096


def read_secret(path: Path) -> str:
    """The first line of a file.

    :raises ConfigError: it can't be read, or there is nothing; the message holds none of it
    """
    try:
        with path.open(encoding="utf-8") as file:
            secret = file.readline(MAX_CHARS).strip()
    except OSError as error:
        raise ConfigError(f"can't read the secret in {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"can't read the secret in {path}: it isn't text") from None
    if not secret:
        raise ConfigError(f"there is no secret in the first line of {path}")
    return secret
