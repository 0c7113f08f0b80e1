"""``ullage accuracy``: how far the kernels' next-token distributions are from the float32 reference."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from ullage.models.model_file import ModelFile
    from ullage.ops.accuracy.measure import Workload
    from ullage.ops.accuracy.pieces import Text
    from ullage.ops.accuracy.report import Report

FILE = click.Path(path_type=Path)


class FormatsCommand(click.Command):
    """A command with a flag for each engine setting whose choices can be measured; none given is all of them."""

    def __init__(self, *, params: list[click.Parameter], **others: Any) -> None:
        from ullage.ops.accuracy.formats import format_choices

        flags = [
            click.Option(
                [name, f"--{name.replace('_', '-')}"],
                type=click.Choice(choices),
                multiple=True,
                help="Only this one; can be given again.  [default: all]",
            )
            for name, choices in format_choices().items()
        ]
        super().__init__(params=[*params, *flags], **others)


@click.command(cls=FormatsCommand)
@click.argument("model")
@click.option(
    "--text",
    "text_paths",
    type=FILE,
    multiple=True,
    metavar="FILE",
    help="Plain text; can be given again.  [default: the repository's own]",
)
@click.option("--tokens", type=click.IntRange(2), default=4096, show_default=True, help="Tokens to measure.")
@click.option("--piece-tokens", type=click.IntRange(2), default=512, show_default=True, help="Each a sequence.")
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True, help="Sequences side by side.")
@click.option("--chunk-tokens", type=click.IntRange(1), default=256, show_default=True, help="Of a prefill step.")
@click.option("--threads", type=click.IntRange(1), help="Threads of the engines.  [default: one per core]")
@click.option("--peers", type=FILE, metavar="DIR", help="Measure llama.cpp too, with DIR/llamacpp/bin/python.")
@click.option("--format", "shown_as", type=click.Choice(["table", "json", "md"]), default="table", show_default=True)
@click.option("--output", type=FILE, metavar="DIR", help="Write a result file into this folder too.")
def accuracy(
    model: str,
    *,
    text_paths: tuple[Path, ...],
    tokens: int,
    piece_tokens: int,
    batch_size: int,
    chunk_tokens: int,
    threads: int | None,
    peers: Path | None,
    shown_as: Literal["table", "json", "md"],
    output: Path | None,
    **formats: tuple[str, ...],
) -> None:
    """Compare MODEL's next-token distributions with the float32 reference.

    Fed one token at a time, in a batch and in prefill chunks, for each way to hold weights, keys and values.
    """
    from ullage.models.open_model import open_model
    from ullage.models.store import find_model
    from ullage.ops.accuracy.measure import Workload
    from ullage.ops.accuracy.pieces import cut, read_text

    if output:
        output.mkdir(parents=True, exist_ok=True)  # what can't be written fails before minutes of measuring
    text = read_text(text_paths)
    opened = open_model(find_model(model))
    try:
        pieces = cut(text, opened.tokenizer(), opened.spec, num_rows=tokens, piece_rows=piece_tokens)
        report = _measure(opened, text, Workload(pieces, batch_size, chunk_tokens), formats, threads, peers)
    finally:
        opened.close()
    saved = report.save(output) if output else None
    _show(report, shown_as)
    if saved:
        click.echo(f"written to {saved}", err=True)


def _measure(
    model: ModelFile,
    text: Text,
    workload: Workload,
    formats: dict[str, tuple[str, ...]],
    threads: int | None,
    peers: Path | None,
) -> Report:
    from rich.console import Console

    from ullage.ops.accuracy.formats import all_formats, format_choices
    from ullage.ops.accuracy.measure import measure_all
    from ullage.ops.accuracy.report import Report

    choices = {name: formats[name] or offered for name, offered in format_choices().items()}
    console = Console(stderr=True)
    with console.status("measuring") as status:
        tell = status.update if console.is_terminal else console.print  # a log shows how far it is, too
        measurements, versions = measure_all(
            model, workload, all_formats(choices), threads=threads, peers=peers, on_start=tell
        )
    command = shlex.join(["ullage", *(Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:])])
    return Report(command, model.path, text, workload, versions, measurements)


def _show(report: Report, shown_as: Literal["table", "json", "md"]) -> None:
    if shown_as == "json":
        click.echo(report.as_json(), nl=False)
        return
    if shown_as == "md":
        click.echo(report.as_markdown(), nl=False)
        return
    from rich.console import Console
    from rich.table import Table

    from ullage.ops.accuracy.report import COLUMNS, NUM_TEXT_COLUMNS

    table = Table(box=None, padding=(0, 1, 0, 0))
    for i, name in enumerate(COLUMNS):
        words = " ".join([name, *(row[i] for row in report.rows())]).split()
        is_text = i < NUM_TEXT_COLUMNS  # it may wrap between words, down to 80 columns in all; figures stay whole
        table.add_column(
            name, justify="left" if is_text else "right", min_width=max(map(len, words)), no_wrap=not is_text
        )
    for row in report.rows():
        table.add_row(*row)
    console = Console()
    console.print(report.title(), highlight=False)
    console.print(table)
