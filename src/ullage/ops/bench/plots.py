"""The figures of a result as pictures, PNG and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ullage.base.errors import ConfigError
from ullage.ops.bench.result import Result, peer_names, points_of
from ullage.ops.bench.run import OURS
from ullage.ops.bench.tables import planned_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SERIES = {
    "decode-batch": ("num_sequences", "Sequences decoded at once", "New tokens per second, all sequences"),
    "decode-context": ("prompt_tokens", "Tokens of context", "New tokens per second, one sequence"),
    "prefill-length": ("prompt_tokens", "Tokens of the prompt", "Prompt tokens per second"),
}
"""Workload: the key of its x axis, and what the axes say."""
PLOTS = (*SERIES, "memory")
BARE: Any = {"axes.spines.top": False, "axes.spines.right": False}

# Told apart by shade, line and mark, so that a print in grey reads as well.
MIB = 2**20
ACCOUNT_SHADES = {
    "weights": "#0b3c5d",
    "kv_pool": "#5b8fb9",
    "workspace": "#9cc3dd",
    "logits": "#c9deec",
    "runtime": "#dddddd",
}
INK, ROOF = "#0b3c5d", "#8a8a8a"
PEER_STYLES = (
    ("#d95f0e", "s", "--"),
    ("#a6761d", "D", "--"),
    ("#1b7837", "^", "-."),
    ("#4d9221", "v", "-."),
    ("#6a51a3", "P", ":"),
)


def draw_plots(name: str, result: Result, folder: Path) -> list[Path]:
    """Draws what the result has points for; returns the PNG files, an SVG lies beside each.

    :param name: begins the files' names
    :raises ConfigError: matplotlib isn't installed
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("plots need matplotlib", hint="pip install 'ullage[bench]'") from error
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    with mpl.rc_context({"font.size": 11, "svg.hashsalt": "ullage", **BARE}):
        for workload in plots_of(result):
            figure = Figure(figsize=(8, 5), layout="constrained")
            axes = figure.add_subplot()
            points = points_of(result, workload)
            _draw_memory(axes, points) if workload == "memory" else _draw_series(axes, points, workload)
            axes.set_title(_title(result, workload), loc="left", fontsize=11)
            path = folder / f"{name}-{workload}.png"
            figure.savefig(path, dpi=150)
            figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
            files.append(path)
    return files


def plots_of(result: Result) -> list[str]:
    """The workloads of a result that make a picture."""
    return [workload for workload in PLOTS if len(points_of(result, workload)) > 1]


def _title(result: Result, workload: str) -> str:
    what = "Memory against the plan" if workload == "memory" else SERIES[workload][2]
    return f"{what}\n{result['model']['name']}, {result['runner']}"


def _draw_series(axes: Axes, points: Sequence[Result], workload: str) -> None:
    key, x_label, y_label = SERIES[workload]
    x = [point[key] for point in points]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ends: list[tuple[float, str, str]] = []
    limits = [point["roofline"]["limit"] for point in points]
    axes.plot(x, limits, color=ROOF, linewidth=1.5, linestyle=(0, (5, 2)))
    ends.append((limits[-1], "roofline", ROOF))
    for name, style in zip(peer_names(points), PEER_STYLES, strict=False):
        colour, mark, line = style
        shown = [(at, point["results"][name]["median"]) for at, point in zip(x, points, strict=True)]
        shown = [(at, median) for at, median in shown if median is not None]
        if shown:
            axes.plot(*zip(*shown, strict=True), color=colour, marker=mark, linestyle=line, markersize=5, linewidth=1.4)
            ends.append((shown[-1][1], name, colour))
    ours = [point["results"][OURS]["median"] for point in points]
    samples = [point["results"][OURS]["samples"] for point in points]
    axes.fill_between(x, [min(s) for s in samples], [max(s) for s in samples], color=INK, alpha=0.15, linewidth=0)
    axes.plot(x, ours, color=INK, marker="o", linewidth=2.4)
    ends.append((ours[-1], OURS, INK))
    _label_ends(axes, x[-1], ends)
    axes.set_xticks(x, [f"{at:,}" for at in x])
    axes.minorticks_off()
    _plain_numbers(axes)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)


def _plain_numbers(axes: Axes) -> None:
    """Ticks at 1, 2 and 5 times powers of ten, written out."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _label_ends(axes: Axes, x: float, ends: Sequence[tuple[float, str, str]]) -> None:
    """Names the lines where they end, one name above the other where they end close together."""
    import math

    low, high = axes.get_ylim()
    span = math.log(high / low)
    gap = 0.055
    position = -math.inf
    for value, name, colour in sorted(ends):
        position = max(math.log(value / low) / span, position + gap)
        axes.annotate(
            name,
            xy=(x, value),
            xytext=(1.02, position),
            textcoords="axes fraction",
            color=colour,
            va="center",
            fontweight="bold" if name == OURS else "normal",
            annotation_clip=False,
        )


def _draw_memory(axes: Axes, points: Sequence[Result]) -> None:
    """Stacked accounts of the plan, and resident memory as marks upon them."""
    x = list(range(len(points)))
    below = [0.0] * len(points)
    for account, shade in ACCOUNT_SHADES.items():
        sizes = [point["results"][OURS]["accounts"][account]["planned_bytes"] / MIB for point in points]
        axes.bar(x, sizes, 0.5, bottom=below, color=shade, label=f"planned: {account}", edgecolor="white")
        below = [start + size for start, size in zip(below, sizes, strict=True)]
    for i, (mark, label) in enumerate((("kv", "resident, idle"), ("k^", "resident, under load"))):
        resident = [point["results"][OURS]["samples"][i] / MIB for point in points]
        axes.plot([at + 0.24 * i - 0.12 for at in x], resident, mark, label=label)
    axes.set_xticks(x, [_memory_tick(point) for point in points])
    axes.set_ylabel("MiB")
    axes.set_xlabel("Size of the KV pool, and what the plan says of the process")
    axes.legend(frameon=False, loc="upper left", fontsize=9)


def _memory_tick(point: Result) -> str:
    pool = point["results"][OURS]["accounts"]["kv_pool"]["planned_bytes"]
    return f"pool {pool / MIB:,.0f} MiB\nplan {planned_bytes(point) / MIB:,.0f} MiB"
