"""``ullage bench engine``: speed of the engine here, beside the peers that are there and what is possible."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import click

from ullage.base.config import check_environment, check_known_names, load_settings, settings_of
from ullage.base.errors import ConfigError
from ullage.cli.settings import BENCH, EVERY_NAME
from ullage.cli.settings_flags import SettingsCommand
from ullage.engine.build import EngineOptions
from ullage.ops.bench.scenario import Scenario, load_scenario

PEERS_FOLDER = Path(".peers")
RESULTS_FOLDER = Path("bench-results")


@click.command(cls=SettingsCommand, sections=BENCH)
@click.argument("model", required=False)
@click.option("--scenario", "scenario_name", default="standard", show_default=True, help="By name, or a TOML file.")
@click.option(
    "--dummy-weights", metavar="SHAPE", help="Instead of MODEL: random weights of this config.json, or known shape."
)
@click.option("--format", "shown", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=RESULTS_FOLDER,
    show_default=True,
    help="Folder of result files.",
)
@click.option("--plots", is_flag=True, help="Draw the plots of this result beside it.")
@click.option(
    "--peers",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with the peers' environments.  [default: .peers, where it exists]",
)
@click.option(
    "--peer-hf",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="MODEL as a Hugging Face folder, for vLLM.  [default: written from MODEL]",
)
def engine(
    model: str | None,
    scenario_name: str,
    dummy_weights: str | None,
    shown: str,
    output: Path,
    plots: bool,
    peers: Path | None,
    peer_hf: Path | None,
    **flags: object,
) -> None:
    """Measure start, decode, prefill and memory of MODEL: our engine and the peers in turns, each in a process of its
    own, and what the machine could do at best.
    """
    from rich.console import Console

    from ullage.ops.bench.result import summary, write_result
    from ullage.ops.bench.run import BenchRequest, run_bench

    scenario = load_scenario(scenario_name)
    path = find_subject(model, dummy_weights)
    request = BenchRequest(
        model=path,
        is_dummy=dummy_weights is not None,
        scenario=scenario,
        options=engine_options(scenario, flags),
        command=command_line(path, dummy_weights, scenario_name, flags),
        peers=peers or (PEERS_FOLDER if PEERS_FOLDER.is_dir() else None),
        peer_hf=peer_hf,
    )
    console = Console(stderr=True)
    with console.status("starting") as status:
        result = run_bench(request, status.update)
    written = write_result(result, output)
    if shown == "json":
        click.echo(json.dumps(summary(result), indent=2))
    else:
        show_tables(result)
    if plots:
        from ullage.ops.bench.plots import draw_plots

        for file in draw_plots(written.stem, result, output):
            click.echo(f"plot: {file}", err=True)
    click.echo(f"result: {written}", err=True)


def engine_options(scenario: Scenario, flags: Mapping[str, object]) -> EngineOptions:
    """Flags win over the environment, the environment over the scenario.

    :raises ConfigError: a setting that nobody knows or that can't be honoured
    """
    check_environment(os.environ, EVERY_NAME)
    check_known_names(scenario.engine, settings_of(EngineOptions), where=f"[engine] of scenario {scenario.name}")
    return load_settings(EngineOptions, file=scenario.engine, environ=os.environ, flags=flags)


def find_subject(model: str | None, dummy_weights: str | None) -> Path:
    """The model to open, or the ``config.json`` of random weights.

    :raises ConfigError: neither was given, or both
    :raises ModelFileError: no such model
    """
    from ullage.models.store import find_model

    if (model is None) == (dummy_weights is None):
        raise ConfigError("the bench needs a MODEL or --dummy-weights SHAPE, and not both")
    if model is not None:
        return find_model(model)
    shapes = Path(str(resources.files("ullage.ops.bench") / "shapes"))
    known = {file.stem: file for file in sorted(shapes.glob("*.json"))}
    path = known.get(str(dummy_weights), Path(str(dummy_weights)))
    if not path.is_file():
        raise ConfigError(f"{dummy_weights} is no shape", hint=f"give a config.json, or one of {', '.join(known)}")
    return path


def command_line(path: Path, dummy_weights: str | None, scenario: str, flags: Mapping[str, object]) -> str:
    """As typed, but files without their folders."""
    given = [f"--{name.replace('_', '-')} {value}" for name, value in flags.items() if value is not None]
    subject = path.name if dummy_weights is None else f"--dummy-weights {path.stem}"
    return " ".join(["ullage bench engine", subject, f"--scenario {Path(scenario).stem}", *given])


def show_tables(result: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from ullage.ops.bench.result import machine_line
    from ullage.ops.bench.tables import in_series, memory_table, speed_table

    points = result["points"]
    speeds = [point for point in points if point["kind"] != "memory"]
    memories = [point for point in points if point["kind"] == "memory"]
    console = Console()
    console.print(f"{result['command']}\n{machine_line(result)}\nruns on: {result['runner']}", highlight=False)
    tables = [speed_table(series) for series in in_series(speeds).values()]
    for header, rows in [*tables, memory_table(memories)] if memories else tables:
        table = Table(*header)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for name, reason in result["failures"].items():
        console.print(f"{name} is out: {reason}", highlight=False, markup=False)
