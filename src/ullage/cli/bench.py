"""``ullage bench``: the commands that measure."""

from __future__ import annotations

import click

from ullage.cli.commands import LateCommands

BENCHES = {
    "engine": (
        "ullage.cli.bench_engine:engine",
        "Measure how fast the engine runs a model, beside its peers.",
    ),
    "accuracy": (
        "ullage.cli.accuracy:accuracy",
        "Compare the kernels with the float32 reference on plain text.",
    ),
    "soak": ("ullage.cli.bench_soak:soak", "Load a model for a long time; watch its memory and speed."),
    "crowd": (
        "ullage.cli.bench_crowd:crowd",
        "Load a model with more than its KV pool holds, and with a tenant that floods it.",
    ),
    "report": ("ullage.cli.bench_report:report", "Write BENCHMARKS.md and its plots from the result files."),
}


@click.group(cls=LateCommands, commands_by_name=BENCHES)
def bench() -> None:
    """Measure speed and memory on this machine."""
