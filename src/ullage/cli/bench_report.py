"""``ullage bench report``: BENCHMARKS.md from the result files."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="The project's folder: benchmarks/results in it is read.  [default: this folder]",
)
def report(root: Path) -> None:
    """Write BENCHMARKS.md and the plots in benchmarks/plots from the files in benchmarks/results."""
    from ullage.ops.bench.plots import draw_plots
    from ullage.ops.bench.report import benchmarks_page
    from ullage.ops.bench.result import read_results

    results = root / "benchmarks" / "results"
    page = benchmarks_page(results)
    for name, result in read_results(results, "engine").items():
        draw_plots(name, result, root / "benchmarks" / "plots")
    (root / "BENCHMARKS.md").write_text(page, "utf-8")
    click.echo(f"written: {root / 'BENCHMARKS.md'}")
