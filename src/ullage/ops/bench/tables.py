"""The figures of a result as a table: cells of text, for a terminal or for a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ullage.ops.bench.result import Result, peer_names, ratio_to_best_peer
from ullage.ops.bench.run import OURS

Table = tuple[list[str], list[list[str]]]
"""Header and rows."""


def speed_table(points: Sequence[Result]) -> Table:
    """A column for each point: ours, its share of the roofline, the peers, and ours against the best of them."""
    peers = peer_names(points)

    def row(name: str, cell: Callable[[Result], str]) -> list[str]:
        return [name, *[cell(point) for point in points]]

    def of_roofline(key: str, text: Callable[[Any], str]) -> Callable[[Result], str]:
        return lambda point: text(point["roofline"][key]) if point["roofline"] else ""

    rows = [
        row("unit", lambda point: point["unit"]),
        row(OURS, lambda point: figure(point["results"][OURS]["median"])),
        row("roofline", of_roofline("limit", figure)),
        row("share of it", of_roofline("share", "{:.0%}".format)),
        row("bound by", of_roofline("bound", str)),
    ]
    rows += [row(name, partial(_median_of, name)) for name in peers]
    if peers:
        rows.append(row(f"{OURS} / best peer", _against_best))
    series = {point["workload"] for point in points}
    corner = series.pop() if len(series) == 1 < len(points) else ""
    return [corner, *[point["name"].removeprefix(f"{corner}-") for point in points]], rows


def memory_table(points: Sequence[Result]) -> Table:
    """A row for each size of the KV pool: planned, then resident memory, in bytes."""
    header = [
        "KV pool",
        "planned, bytes",
        "allocated - planned",
        "resident idle",
        "resident under load",
        "off the plan",
    ]
    rows = []
    for point in points:
        measured = point["results"][OURS]
        planned = planned_bytes(point)
        accounts = [account for name, account in measured["accounts"].items() if name not in ("runtime", "headroom")]
        difference = sum(account["allocated_bytes"] - account["planned_bytes"] for account in accounts)
        idle, loaded = measured["samples"][:2]
        off = max((idle / planned - 1, loaded / planned - 1), key=abs)
        pool = measured["accounts"]["kv_pool"]["planned_bytes"]
        cells = [f"{number:,}" for number in (planned, difference, idle, loaded)]
        rows.append([f"{pool / 2**20:.0f} MiB", *cells, f"{off:+.1%}"])
    return header, rows


def planned_bytes(point: Result) -> int:
    """Of all accounts but the headroom."""
    accounts = point["results"][OURS]["accounts"]
    return sum(account["planned_bytes"] for name, account in accounts.items() if name != "headroom")


def in_series(points: Sequence[Result]) -> dict[str, list[Result]]:
    """The points of a table each: single figures together under ``""``, then series of several points by name."""
    tables: dict[str, list[Result]] = {"": []}
    for point in points:
        alone = sum(other["workload"] == point["workload"] for other in points) == 1
        tables.setdefault("" if alone else point["workload"], []).append(point)
    return {name: members for name, members in tables.items() if members}


def figure(value: float | None) -> str:
    """Three digits, or whole numbers above."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _median_of(name: str, point: Result) -> str:
    return figure(point["results"].get(name, {}).get("median"))


def _against_best(point: Result) -> str:
    ratio = ratio_to_best_peer(point)
    return "–" if ratio is None else f"{ratio:.2f} ×"
