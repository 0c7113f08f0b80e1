"""``ullage top``: a running server's memory and work, live in the terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ullage.base.errors import ConfigError, EngineError
from ullage.base.secret_file import read_secret

if TYPE_CHECKING:
    import ssl

    from rich.console import Console

    from ullage.cli.top_view import Reading

DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT_SECONDS = 3.0
FILE = click.Path(path_type=Path, dir_okay=False)
KEYS = {"accounts", "kv_pool", "blocks", "requests", "tokens", "engine", "measured"}
"""Of ``GET /v1/ledger``."""


@click.command()
@click.argument("url", default=DEFAULT_URL)
@click.option(
    "--interval", type=click.FloatRange(0.1, 60), default=1.0, show_default=True, help="Seconds between looks."
)
@click.option("--once", is_flag=True, help="Print what is there now, and end: for scripts.")
@click.option("--api-key-file", type=FILE, help="File whose first line is an API key of the route group observe.")
@click.option("--ca-file", type=FILE, help="PEM file of the authorities that vouch for the server's certificate.")
@click.option("--client-cert-file", type=FILE, help="PEM file of a certificate and its key, where clients need one.")
def top(
    url: str,
    interval: float,
    once: bool,
    api_key_file: Path | None,
    ca_file: Path | None,
    client_cert_file: Path | None,
) -> int:
    """Watch the server at URL: its memory account by account, its blocks, requests and speed.

    q or Ctrl-C ends it. A server that goes away is waited for. An API key can also stand in ULLAGE_API_KEY.
    """
    from rich.console import Console

    from ullage.cli.top_view import frame

    base = _base_of(url)
    door = open_door(api_key_file, ca_file, client_cert_file)
    console = Console(highlight=False)
    first = read(base, door)
    if first.body is None:
        raise EngineError(
            f"{base} doesn't answer: {first.trouble}", hint="name a running server: ullage top http://..."
        )
    if once or not console.is_terminal:
        console.print(frame(base, first, None, console.width))
        return 0
    _watch(console, base, door, interval, first)
    return 0


@dataclass(frozen=True, slots=True)
class Door:
    """What opens a server: a key, and whom to trust over https."""

    api_key: str | None = field(default=None, repr=False)
    context: ssl.SSLContext | None = None


def open_door(api_key_file: Path | None, ca_file: Path | None, client_cert_file: Path | None) -> Door:
    """:raises ConfigError: a file can't be used"""
    import ssl

    key = os.environ.get("ULLAGE_API_KEY") if api_key_file is None else read_secret(api_key_file)
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ConfigError("an API key has printable ASCII characters only", hint="see ullage keys create")
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError:
        raise ConfigError(f"{ca_file} has no certificates of authorities in PEM form", hint="see --ca-file") from None
    try:
        if client_cert_file is not None:
            context.load_cert_chain(client_cert_file, password=lambda: "")  # never asks at the terminal
    except OSError:
        hint = "it needs both, and no password"
        raise ConfigError(f"{client_cert_file} has no certificate with its key in PEM form", hint=hint) from None
    return Door(key or None, context)


def read(base: str, door: Door | None = None) -> Reading:
    """One look at a server; never raises."""
    import json
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    from ullage.cli.top_view import Reading

    door = door or Door()
    try:
        request = Request(f"{base}/v1/ledger")
        if door.api_key is not None:
            request.add_unredirected_header("Authorization", f"Bearer {door.api_key}")  # for this server alone
        with urlopen(request, timeout=TIMEOUT_SECONDS, context=door.context) as answer:
            body = json.load(answer)
        if not isinstance(body, dict) or not body.keys() >= KEYS:
            return Reading(time.monotonic(), None, "it isn't a server of this release of Ullage")
        return Reading(time.monotonic(), body, "")
    except HTTPError as error:
        error.close()
        hint = " (name an API key: --api-key-file or ULLAGE_API_KEY)" if error.code == 401 else ""
        return Reading(time.monotonic(), None, f"it answers {error.code} {error.reason}{hint}")
    except URLError as error:
        return Reading(time.monotonic(), None, str(error.reason))
    except (OSError, HTTPException, ValueError) as error:
        return Reading(time.monotonic(), None, str(error) or type(error).__name__)


def _base_of(url: str) -> str:
    base = url.rstrip("/").removesuffix("/v1")
    if not base.startswith(("http://", "https://")):
        raise ConfigError(f"{url!r} is no address of a server", hint=f"write it like {DEFAULT_URL}")
    return base


def _watch(console: Console, base: str, door: Door, interval: float, first: Reading) -> None:
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
            now = read(base, door)
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
