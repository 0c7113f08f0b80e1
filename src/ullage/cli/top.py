"""``ullage top``: a running server's memory and work, live in the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from ullage.base.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from rich.console import Console

    from ullage.cli.top_view import Reading

DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT_SECONDS = 3.0
KEYS = {"accounts", "kv_pool", "blocks", "requests", "tokens", "engine", "measured"}
"""Of ``GET /v1/ledger``."""


@click.command()
@click.argument("url", default=DEFAULT_URL)
@click.option(
    "--interval", type=click.FloatRange(0.1, 60), default=1.0, show_default=True, help="Seconds between looks."
)
@click.option("--once", is_flag=True, help="Print what is there now, and end: for scripts.")
def top(url: str, interval: float, once: bool) -> int:
    """Watch the server at URL: its memory account by account, its blocks, requests and speed.

    q or Ctrl-C ends it. A server that goes away is waited for.
    """
    from rich.console import Console

    from ullage.cli.top_view import frame

    base = _base_of(url)
    console = Console(highlight=False)
    first = read(base)
    if first.body is None:
        raise EngineError(
            f"{base} doesn't answer: {first.trouble}", hint="name a running server: ullage top http://..."
        )
    if once or not console.is_terminal:
        console.print(frame(base, first, None, console.width))
        return 0
    _watch(console, base, interval, first)
    return 0


def read(base: str) -> Reading:
    """One look at a server; never raises."""
    import json
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import urlopen

    from ullage.cli.top_view import Reading

    try:
        with urlopen(f"{base}/v1/ledger", timeout=TIMEOUT_SECONDS) as answer:
            body = json.load(answer)
        if not isinstance(body, dict) or not body.keys() >= KEYS:
            return Reading(time.monotonic(), None, "it isn't a server of this release of Ullage")
        return Reading(time.monotonic(), body, "")
    except HTTPError as error:
        return Reading(time.monotonic(), None, f"it answers {error.code} {error.reason}")
    except URLError as error:
        return Reading(time.monotonic(), None, str(error.reason))
    except (OSError, HTTPException, ValueError) as error:
        return Reading(time.monotonic(), None, str(error) or type(error).__name__)


def _base_of(url: str) -> str:
    base = url.rstrip("/").removesuffix("/v1")
    if not base.startswith(("http://", "https://")):
        raise ConfigError(f"{url!r} is no address of a server", hint=f"write it like {DEFAULT_URL}")
    return base


def _watch(console: Console, base: str, interval: float, first: Reading) -> None:
    from dataclasses import replace

    from rich.live import Live

    from ullage.cli.top_view import frame

    before, now = None, first
    last_good = first
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            shown = now if now.body is not None else replace(last_good, trouble=now.trouble)
            live.update(frame(base, shown, before, console.width), refresh=True)
            if pressed(interval) in ("q", "Q", "\x03"):
                return
            before = now if now.body is not None else None
            now = read(base)
            last_good = now if now.body is not None else last_good


def _wait(seconds: float) -> str:
    time.sleep(seconds)
    return ""


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Waits for a key, so many seconds at most; empty when none came. Keys aren't echoed meanwhile."""
    import select
    import termios
    import tty

    if not sys.stdin.isatty():
        yield _wait
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)

        def pressed(seconds: float) -> str:
            ready, _, _ = select.select([sys.stdin], [], [], seconds)
            return sys.stdin.read(1) if ready else ""

        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
