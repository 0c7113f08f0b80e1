"""``ullage bench soak``: random load for a long time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ullage.base.config import settings_of
from ullage.cli.settings import BENCH
from ullage.cli.settings_flags import SettingsCommand, load_all

if TYPE_CHECKING:
    from ullage.engine.build import EngineOptions


@click.command(cls=SettingsCommand, sections=BENCH)
@click.argument("model")
@click.option("--minutes", type=click.IntRange(1), default=30, show_default=True, help="Rounds of load, one each.")
@click.option("--clients", type=click.IntRange(1), default=16, show_default=True, help="Requests at once.")
@click.option("--output", type=click.Path(path_type=Path), metavar="DIR", help="Write a result file into this folder.")
def soak(model: str, *, minutes: int, clients: int, output: Path | None, **flags: object) -> None:
    """Load MODEL with random requests; watch its memory and the speed of a step."""
    (options,) = load_all(BENCH, flags)
    result = _soak(model, options, minutes, clients)
    memory, speed = result["summary"]["memory_change"], result["summary"]["speed_change"]
    click.echo(f"resident memory {memory:+.2%}, speed of one sequence {speed:+.1%}, last third against first")
    if output is not None:
        from ullage.ops.bench.result import write_result

        click.echo(f"result: {write_result(result, output)}")


def _soak(model: str, options: EngineOptions, minutes: int, clients: int) -> dict[str, Any]:
    from ullage.engine.build import assemble_engine
    from ullage.models.open_model import open_model
    from ullage.models.store import find_model
    from ullage.ops.bench.machine import describe_commit, describe_machine, describe_versions
    from ullage.ops.bench.run import RESULT_FORMAT
    from ullage.ops.bench.soak import Soak, SoakSample, summary

    opened = open_model(find_model(model))
    try:
        built = assemble_engine(opened, opened.tokenizer(), options)
    finally:
        opened.close()

    def tell(sample: SoakSample) -> None:
        click.echo(
            f"{sample.seconds / 60:5.1f} min  {sample.resident_bytes / 2**20:8.1f} MiB  "
            f"{sample.probe_tokens_per_second:6.1f} tokens/s alone  {sample.num_requests} requests"
        )

    async def run() -> list[SoakSample]:
        await built.engine.start()
        try:
            return await Soak(built.engine, opened.spec.vocab_size, num_clients=clients).run(minutes, tell)
        finally:
            await built.engine.stop()

    began = datetime.now(UTC)
    samples = asyncio.run(run())
    return {
        "format": RESULT_FORMAT,
        "kind": "soak",
        "scenario": "soak",
        "date": began.strftime("%Y-%m-%d %H:%M UTC"),
        "command": f"ullage bench soak {Path(model).name} --minutes {minutes} --clients {clients}",
        **describe_commit(),
        "versions": describe_versions(),
        "machine": describe_machine(),
        "model": {"name": opened.path.name},
        "settings": {name: getattr(options, name) for name in settings_of(type(options))},
        "runner": built.runner.name,
        "planned_bytes": built.plan.process_bytes,
        "summary": summary(samples),
    }
