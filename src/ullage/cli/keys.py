"""``ullage keys``: makes, lists and revokes API keys."""

from __future__ import annotations

import time
from pathlib import Path

import click

from ullage.access.keys import ROUTE_GROUPS, KeyStore

SECONDS_PER_DAY = 86400


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
@click.pass_obj
def create(store: KeyStore, tenant: str, name: str, groups: tuple[str, ...], expires_in_days: float | None) -> None:
    """Make a key, and show it this one time."""
    expires_at = None if expires_in_days is None else time.time() + expires_in_days * SECONDS_PER_DAY
    _, text = store.create(tenant, name, groups, expires_at)
    click.echo("this is the only time the key is shown", err=True)
    click.echo(text)


@keys.command(name="list")
@click.pass_obj
def list_(store: KeyStore) -> None:
    """List the keys, without their secrets."""
    now = time.time()
    for key in store.list():
        state = "revoked" if key.revoked_at is not None else "valid" if key.is_valid(now) else "expired"
        click.echo(f"{key.id}  {state:<7}  {key.tenant}  {key.name}  {','.join(key.route_groups)}")


@keys.command()
@click.argument("key_id")
@click.pass_obj
def revoke(store: KeyStore, key_id: str) -> None:
    """Revoke the key KEY_ID, at once and for good."""
    store.revoke(key_id)
