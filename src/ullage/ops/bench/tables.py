"""The figures of a result as a table: cells of text, for a terminal or for a page."""

from __future__ import annotations

from collections.abc import Sequence

from ullage.ops.bench.result import Result, best_peer, peer_names, ratio_to_best_peer
from ullage.ops.bench.run import OURS

Table = tuple[list[str], list[list[str]]]
"""Header and rows."""


def speed_table(points: Sequence[Result]) -> Table:
    """A row for each point: ours, its share of the roofline, the peers, and ours against the best of them."""
    peers = peer_names(points)
    header = ["workload", "unit", OURS, "roofline", "share", "bound by", *peers]
    rows = []
    for point in points:
        roofline = point["roofline"]
        cells = [figure(roofline["limit"]), f"{roofline['share']:.0%}", roofline["bound"]] if roofline else ["", "", ""]
        row = [point["name"], point["unit"], figure(point["results"][OURS]["median"]), *cells]
        row += [figure(point["results"].get(name, {}).get("median")) for name in peers]
        if peers:
            row.append(_against_best(point))
        rows.append(row)
    return header + ["against the best peer"] * bool(peers), rows


def memory_table(points: Sequence[Result]) -> Table:
    """A row for each size of the KV pool: planned, then resident memory, in bytes."""
    header = ["KV pool", "planned, bytes", "allocated, bytes", "resident idle", "resident under load", "off the plan"]
    rows = []
    for point in points:
        measured = point["results"][OURS]
        planned, allocated = planned_and_allocated(point)
        idle, loaded = measured["samples"][:2]
        off = max((idle / planned - 1, loaded / planned - 1), key=abs)
        pool = measured["accounts"]["kv_pool"]["planned_bytes"]
        cells = [f"{number:,}" for number in (planned, allocated, idle, loaded)]
        rows.append([f"{pool / 2**20:.0f} MiB", *cells, f"{off:+.1%}"])
    return header, rows


def planned_and_allocated(point: Result) -> tuple[int, int]:
    """Bytes of all accounts but the headroom."""
    accounts = [account for name, account in point["results"][OURS]["accounts"].items() if name != "headroom"]
    planned, allocated = ("planned_bytes", "allocated_bytes")
    return sum(account[planned] for account in accounts), sum(account[allocated] for account in accounts)


def figure(value: float | None) -> str:
    """Three digits, or whole numbers above."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _against_best(point: Result) -> str:
    best, ratio = best_peer(point), ratio_to_best_peer(point)
    return f"{ratio:.2f} × {best[0]}" if best and ratio else "no peer ran it"
