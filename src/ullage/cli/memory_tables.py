"""The memory of a deployment as tables for a terminal: as planned, and as it turned out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.table import Table

from ullage.base.byte_sizes import format_bytes

if TYPE_CHECKING:
    from ullage.plan.memory import Plan


def plan_table(plan: Plan) -> Table:
    """Every account with its bytes and how they come about."""
    table = _table("Memory plan", "bytes")
    table.add_column("how it comes about", overflow="fold")
    *taken, headroom = plan.accounts
    for account in taken:
        _add_figure(table, account.name, account.num_bytes, account.formula)
    table.add_section()
    _add_figure(table, "this server", plan.process_bytes, "takes this much, all above")
    _add_figure(table, headroom.name, headroom.num_bytes, headroom.formula)
    return table


def _add_figure(table: Table, name: str, num_bytes: int, remark: str) -> None:
    table.add_row(
        name, f"{num_bytes:,}", format_bytes(num_bytes), remark, style="bold" if name == "this server" else ""
    )


def ledger_table(accounts: Mapping[str, Mapping[str, int]], resident_bytes: int) -> Table:
    """The accounts of ``GET /v1/ledger``: what was planned, and what the ledger handed out. The last line is measured.

    :param resident_bytes: physical memory of the server's processes, by the system's count
    """
    table = _table("Memory, planned and taken", "planned, bytes")
    table.add_column("allocated, bytes", justify="right")
    used = {name: account for name, account in accounts.items() if name != "headroom"}
    for name, account in used.items():
        planned, allocated = account["planned_bytes"], account["allocated_bytes"]
        table.add_row(name, f"{planned:,}", format_bytes(planned), f"{allocated:,}")
    table.add_section()
    planned = sum(account["planned_bytes"] for account in used.values())
    allocated = sum(account["allocated_bytes"] for account in used.values())
    table.add_row("total", f"{planned:,}", format_bytes(planned), f"{allocated:,}")
    table.add_row("resident now", "", "", f"{resident_bytes:,}")
    table.caption = _in_a_sentence(used, planned, resident_bytes)
    return table


def _in_a_sentence(accounts: Mapping[str, Mapping[str, int]], planned: int, resident_bytes: int) -> str:
    off = [
        name
        for name, account in accounts.items()
        if name != "runtime" and account["planned_bytes"] != account["allocated_bytes"]
    ]
    kept = f"not allocated as planned: {', '.join(off)}" if off else "allocated as planned, to the byte"
    percent = 100 * (resident_bytes / planned - 1)
    return (
        f"{kept} (runtime is measured); resident is {abs(percent):.1f} % {'above' if percent > 0 else 'below'} the plan"
    )


def _table(title: str, figure: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", caption_justify="left")
    table.add_column("account")
    table.add_column(figure, justify="right")
    table.add_column("", justify="right")
    return table
