"""What ``ullage top`` shows: one frame out of two looks at ``GET /v1/ledger``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ullage.base.byte_sizes import format_bytes

WIDEST_BAR, NARROWEST_BAR = 60, 10
COLOURS = {"weights": "blue", "kv_pool": "green", "runtime": "magenta", "headroom": "bright_black"}
OTHER_COLOUR = "yellow"
POOL_PARTS = (("used", "green"), ("kept", "yellow"), ("cached", "cyan"), ("free", "bright_black"))


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at a server.

    :ivar at: seconds of a clock that never goes back
    :ivar body: of ``GET /v1/ledger``; None: there was no answer
    :ivar trouble: why there was none; empty: all is well
    """

    at: float
    body: Mapping[str, Any] | None
    trouble: str


def frame(base: str, now: Reading, before: Reading | None, width: int) -> RenderableType:
    """:param before: an earlier look, for the speed"""
    assert now.body is not None
    parts: list[RenderableType] = [_headline(base, now), _work(now, before), Text(), _accounts(now.body, width)]
    parts += [Text(), *_pool(now.body, width)]
    return Group(*parts)


def _headline(base: str, now: Reading) -> Text:
    assert now.body is not None
    engine = now.body["engine"]
    if now.trouble:
        return Text.assemble((f"{base} ", "bold"), (f"doesn't answer ({now.trouble}); last seen:", "bold red"))
    state = str(engine["state"])
    colour = "green" if state == "ready" else "red"
    restarts = engine["num_restarts"]
    said = f"  restarted {restarts} times" if restarts > 1 else "  restarted once" if restarts else ""
    return Text.assemble((f"{base} ", "bold"), (state, f"bold {colour}"), (said, "yellow"))


def _work(now: Reading, before: Reading | None) -> Text:
    assert now.body is not None
    requests, tokens = now.body["requests"], now.body["tokens"]
    speed = tokens_per_second(now, before)
    text = Text(f"{requests['running']:,} running, {requests['waiting']:,} waiting")
    text.append(f"   {'-' if speed is None else f'{speed:,.0f}'} tokens/s", style="bold")
    text.append(f"   {tokens['generated']:,} made, {tokens['prefix_hits']:,} cached")
    text.append(f"   {requests['preemptions']:,} preemptions", style="yellow" if requests["preemptions"] else "")
    return text


def tokens_per_second(now: Reading, before: Reading | None) -> float | None:
    """New tokens; None: not known yet, or the server began anew in between."""
    if before is None or now.body is None or before.body is None or now.trouble or now.at <= before.at:
        return None
    made = now.body["tokens"]["generated"] - before.body["tokens"]["generated"]
    return None if made < 0 else float(made / (now.at - before.at))


def _accounts(body: Mapping[str, Any], width: int) -> Table:
    accounts = body["accounts"]
    total = sum(account["planned_bytes"] for name, account in accounts.items() if name != "headroom")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("account")
    table.add_column("planned", justify="right")
    table.add_column("taken", justify="right")
    table.add_column("share of what the server takes")
    bar = max(NARROWEST_BAR, min(WIDEST_BAR, width - 40))
    for name, account in accounts.items():
        planned, taken = account["planned_bytes"], account["allocated_bytes"]
        colour = COLOURS.get(name, OTHER_COLOUR)
        if name == "headroom":
            table.add_row(Text(name, style=colour), format_bytes(planned), "", Text("stays free", style=colour))
            continue
        line = Text("█" * round(bar * planned / max(1, total)) or "▏", style=colour)
        table.add_row(Text(name, style=colour), format_bytes(planned), format_bytes(taken), line)
    table.add_section()
    resident = body["measured"]["resident_bytes"]
    table.add_row(
        "resident", "", format_bytes(resident), Text(f"{resident / max(1, total):.0%} of the plan", style="dim")
    )
    return table


def _pool(body: Mapping[str, Any], width: int) -> list[RenderableType]:
    """Blocks by what they hold: tokens of requests, room kept for them, prefixes worth keeping, nothing."""
    blocks, pool = body["blocks"], body["kv_pool"]
    total = blocks["total"]
    size = body["accounts"]["kv_pool"]["planned_bytes"] / max(1, total)
    used = round(pool["used_bytes"] / max(1.0, size))
    reserved = round(pool["reserved_bytes"] / max(1.0, size))
    cached = round(pool["cached_bytes"] / max(1.0, size))
    kept = reserved - used + blocks["promised"]
    counts = {"used": used, "kept": kept, "cached": cached, "free": max(0, total - used - kept - cached)}
    bar_width = max(NARROWEST_BAR, min(WIDEST_BAR + 30, width - 2))
    bar, drawn, so_far = Text(), 0, 0
    for name, colour in POOL_PARTS:
        so_far += counts[name]
        end = min(bar_width, round(bar_width * so_far / max(1, total)))
        bar.append(("░" if name == "free" else "█") * (end - drawn), style=colour)
        drawn = max(drawn, end)
    legend = Text(f"{total:,} blocks of {blocks['size']} tokens: ")
    for i, (name, colour) in enumerate(POOL_PARTS):
        legend.append(f"{', ' if i else ''}{counts[name]:,} {name}", style=colour)
    return [legend, bar]
