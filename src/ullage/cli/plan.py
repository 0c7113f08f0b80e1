"""``ullage plan``: the memory of a deployment, worked out before it is made."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ullage.base.config import load_settings
from ullage.cli.settings_flags import SettingsCommand
from ullage.plan.deployment.options import PlanOptions

if TYPE_CHECKING:
    from ullage.plan.deployment import DeploymentPlan

SECTIONS = {"Deployment": PlanOptions}


@click.command(cls=SettingsCommand, sections=SECTIONS)
@click.argument("model")
@click.option("--format", "output", type=click.Choice(["table", "json"]), default="table", help="How to say it.")
@click.option(
    "--as-engine",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="JSON with an engine's inputs: answer with the figures that it would print.",
)
def plan(model: str, output: str, as_engine: Path | None, **flags: object) -> int:
    """Say whether MODEL fits, and what limits it, before anything is downloaded or started.

    MODEL is a folder, a config.json, a GGUF file, a name in the store or in the catalogue, or a hub id. Exit code 0: it
    fits; 1: it doesn't; 2: the input can't be used.
    """
    from ullage.plan.deployment import load_model, plan_deployment

    options = load_settings(PlanOptions, flags=flags)
    planned = load_model(model)
    if as_engine is not None:
        _print_engine_report(planned.config, as_engine)
        return 0
    worked_out = plan_deployment(planned, options)
    _print(worked_out, output)
    return 0 if worked_out.fits else 1


def _print_engine_report(config: object, path: Path) -> None:
    from ullage.models.fields import read_json_object
    from ullage.plan.as_engine import as_engine
    from ullage.plan.deployment.planned_model import MAX_CONFIG_BYTES

    report = as_engine(config, read_json_object(path, MAX_CONFIG_BYTES))
    shown = {"engine_report": report, "implausible": report["implausible"], "reasons": report["reasons"]}
    click.echo(json.dumps(shown, indent=2, allow_nan=False))


def _print(worked_out: DeploymentPlan, output: str) -> None:
    if output == "json":
        from ullage.plan.reports.as_json import plan_json

        click.echo(json.dumps(plan_json(worked_out), indent=2, allow_nan=False))
        return
    from rich.console import Console

    from ullage.cli.plan_tables import print_plan

    print_plan(Console(file=sys.stdout, highlight=False), worked_out)
