"""``ullage keys``: makes, lists and revokes API keys."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import click

from ullage.access.keys import ROUTE_GROUPS, ApiKey, KeyStore

SECONDS_PER_DAY = 86400
PIPE_WIDTH = 1000
"""Programs get a key in a line."""
COLUMNS = ("id", "state", "tenant", "name", "route_groups", "models", "created", "expires", "revoked")


@click.group()
@click.option("--file", "path", type=click.Path(path_type=Path, dir_okay=False), required=True, help="File of keys.")
@click.pass_context
def keys(context: click.Context, path: Path) -> None:
    """Make, list and revoke API keys. A server takes the file with --api-keys-file."""
    context.obj = KeyStore(path)


@keys.command()
@click.option("--tenant", required=True, help="Whose key it is.")
@click.option("--name", default="", help="What it is for.")
@click.option("--route-group", "groups", multiple=True, type=click.Choice(ROUTE_GROUPS), default=("inference",))
@click.option("--expires-in-days", type=click.FloatRange(min=0, min_open=True), help="Default: never.")
@click.option("--model", "models", multiple=True, help="A model it may use, as clients name it. Default: all.")
@click.pass_obj
def create(
    store: KeyStore,
    tenant: str,
    name: str,
    groups: tuple[str, ...],
    expires_in_days: float | None,
    models: tuple[str, ...],
) -> None:
    """Make a key, and show it this one time."""
    expires_at = None if expires_in_days is None else time.time() + expires_in_days * SECONDS_PER_DAY
    _, text = store.create(tenant, name, groups, expires_at, models)
    click.echo("this is the only time the key is shown", err=True)
    click.echo(text)


@keys.command(name="list")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.pass_obj
def list_(store: KeyStore, form: str) -> None:
    """List the keys, without their secrets."""
    rows = [_row(key, time.time()) for key in store.list()]
    if form == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for name in COLUMNS:
        table.add_column(name, overflow="fold", no_wrap=name == "id")
    for row in rows:
        table.add_row(*(escape(_cell(row[name])) for name in COLUMNS))
    Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)


def _row(key: ApiKey, now: float) -> dict[str, object]:
    """By the names of ``COLUMNS``; times in UTC."""
    state = "revoked" if key.revoked_at is not None else "valid" if key.is_valid(now) else "expired"
    return {
        "id": key.id,
        "state": state,
        "tenant": key.tenant,
        "name": key.name,
        "route_groups": list(key.route_groups),
        "models": list(key.models),
        "created": _time(key.created_at),
        "expires": _time(key.expires_at),
        "revoked": _time(key.revoked_at),
    }


def _time(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _cell(value: object) -> str:
    text = ", ".join(value) if isinstance(value, list) else str(value or "")
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


@keys.command()
@click.argument("key_id")
@click.pass_obj
def revoke(store: KeyStore, key_id: str) -> None:
    """Revoke the key KEY_ID, at once and for good."""
    store.revoke(key_id)
