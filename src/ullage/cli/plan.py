"""``ullage plan``: the memory of a deployment, worked out before it is made."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ullage.base.config import load_settings
from ullage.base.errors import ConfigError
from ullage.cli.settings_flags import SettingsCommand
from ullage.plan.deployment.options import PlanOptions

if TYPE_CHECKING:
    from rich.console import Console

    from ullage.plan.deployment import DeploymentPlan, PlannedModel

SECTIONS = {"Deployment": PlanOptions}
FORMATS = ("table", "json", "md", "html", "svg")
QUESTIONS = ("concurrency", "context", "devices")


@click.command(cls=SettingsCommand, sections=SECTIONS)
@click.argument("model", required=False)
@click.option("--format", "output", type=click.Choice(FORMATS), default="table", help="How to say it.")
@click.option(
    "--find",
    type=click.Choice(QUESTIONS),
    help="Answer one question: most requests of this context, longest context of so many requests, or which devices.",
)
@click.option(
    "--as-engine",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="JSON with an engine's inputs: answer with the figures that it would print.",
)
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="LOGFILE",
    help="Start-up log of vLLM, SGLang or llama.cpp: planned against actual, and why they differ.",
)
@click.option("--list", "names_only", is_flag=True, help="Name the models and devices of the catalogue.")
def plan(
    model: str | None,
    output: str,
    find: str | None,
    as_engine: Path | None,
    against: Path | None,
    names_only: bool,
    **flags: object,
) -> int:
    """Say whether MODEL fits, and what limits it, before anything is downloaded or started.

    MODEL is a folder, a config.json, a GGUF file, a name in the store or in the catalogue, or a hub id. Exit code 0: it
    fits; 1: it doesn't; 2: the input can't be used.
    """
    from ullage.plan.deployment import load_model, plan_deployment

    options = load_settings(PlanOptions, flags=flags)
    if names_only:
        return _print_catalogue()
    if against is not None:
        return _print_comparison(model, against, options, output)
    if model is None:
        raise ConfigError("no model is named", hint="give a path or a name; see: ullage plan --list")
    planned = load_model(model)
    if as_engine is not None:
        return _print_engine_report(planned.config, as_engine)
    if find == "devices":
        return _print_devices(planned, options, output)
    worked_out = plan_deployment(planned, options)
    if find is not None:
        return _print_answer(worked_out, find, output)
    _print(worked_out, output)
    return 0 if worked_out.fits else 1


def _print_catalogue() -> int:
    from ullage.cli.plan_tables import print_names
    from ullage.plan.catalogue import device_names, model_names

    print_names(_console(), model_names(), device_names())
    return 0


def _print_engine_report(config: object, path: Path) -> int:
    from ullage.models.fields import read_json_object
    from ullage.plan.as_engine import as_engine
    from ullage.plan.deployment.planned_model import MAX_CONFIG_BYTES

    _check_file(path)
    report = as_engine(config, read_json_object(path, MAX_CONFIG_BYTES))
    _print_json({"engine_report": report, "implausible": report["implausible"], "reasons": report["reasons"]})
    return 0


def _print_comparison(model: str | None, path: Path, options: PlanOptions, output: str) -> int:
    """Exit code 1: something differs by more than 2 %."""
    from dataclasses import asdict, replace

    from ullage.plan.deployment import load_model
    from ullage.plan.start_up_log import compare, compare_own, read_log
    from ullage.plan.start_up_log.reader import MAX_LOG_BYTES

    _only(output, "table", "json")
    _check_file(path)
    try:
        with path.open("rb") as file:
            log = read_log(file.read(MAX_LOG_BYTES).decode("utf-8", "replace"))
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None
    name = model or log.model
    if name is None:
        raise ConfigError(f"{path} doesn't name the model", hint="name it: ullage plan MODEL --against LOGFILE")
    if options.engine is not None and options.engine != log.engine:
        raise ConfigError(f"{path} is a log of {log.engine}, not of {options.engine}", hint="leave --engine out")
    if options.engine_version is not None:
        log = replace(log, version=options.engine_version)
    planned = load_model(name)
    lines = compare_own(planned, log) if log.engine == "ullage" else compare(planned.config, log)
    if output == "json":
        _print_json([{**asdict(line), "difference": line.difference} for line in lines])
    else:
        from ullage.cli.plan_tables import print_comparison

        print_comparison(_console(), name, log, lines)
    return 1 if any(line.cause and line.planned is not None for line in lines) else 0


def _check_file(path: Path) -> None:
    if not path.is_file():  # a pipe would be waited for
        raise ConfigError(f"{path}: no such file", hint="give a file, not a folder or a pipe")


def _print_devices(model: PlannedModel, options: PlanOptions, output: str) -> int:
    from ullage.plan.deployment.questions import device_choices

    _only(output, "table", "json")
    choices = device_choices(model, options)
    if output == "json":
        _print_json([{"device": choice.device, "count": choice.count} for choice in choices])
    else:
        from ullage.cli.plan_tables import print_choices

        print_choices(_console(), choices)
    return 0 if choices else 1


def _print_answer(worked_out: DeploymentPlan, question: str, output: str) -> int:
    _only(output, "table", "json")
    if worked_out.pool_bytes is None:
        raise ConfigError(f"--find {question} needs a device", hint="give --device, --memory or --kv-memory")
    answer = worked_out.largest_concurrency() if question == "concurrency" else worked_out.largest_context()
    if output == "json":
        _print_json({question: answer})
    elif question == "concurrency":
        click.echo(f"{answer:,} requests of {worked_out.context:,} tokens at once")
    else:
        click.echo(f"{answer:,} tokens for each of {worked_out.concurrency:,} requests at once")
    return 0 if answer else 1


def _only(output: str, *known: str) -> None:
    if output not in known:
        raise ConfigError(f"--format {output} isn't for single answers", hint="use " + " or ".join(known))


def _print(worked_out: DeploymentPlan, output: str) -> None:
    from ullage.plan.reports import as_json, documents, picture

    if output == "json":
        _print_json(as_json.plan_json(worked_out))
    elif output == "md":
        click.echo(documents.plan_markdown(worked_out), nl=False)
    elif output == "html":
        click.echo(documents.plan_html(worked_out), nl=False)
    elif output == "svg":
        click.echo(picture.plan_svg(worked_out))
    else:
        from ullage.cli.plan_tables import print_plan

        print_plan(_console(), worked_out)


def _print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def _console() -> Console:
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False)
