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
    for account in plan.accounts:
        table.add_row(account.name, f"{account.num_bytes:,}", format_bytes(account.num_bytes), account.formula)
    table.add_section()
    total = sum(account.num_bytes for account in plan.accounts)
    table.add_row("total", f"{total:,}", format_bytes(total), "what this process may use")
    return table


def ledger_table(accounts: Mapping[str, Mapping[str, int]], resident_bytes: int) -> Table:
    """The accounts of ``GET /v1/ledger`` beside what the system says that the process holds.

    :param resident_bytes: physical memory of the server's process
    """
    table = _table("Memory, planned and measured", "planned, bytes")
    table.add_column("measured, bytes", justify="right")
    measured_total = 0
    for name, account in accounts.items():
        if name == "headroom":
            continue
        planned, measured = account["planned_bytes"], account["allocated_bytes"]
        measured_total += measured
        table.add_row(name, f"{planned:,}", format_bytes(planned), f"{measured:,}" if measured else "")
    table.add_section()
    planned_total = sum(account["planned_bytes"] for name, account in accounts.items() if name != "headroom")
    table.add_row("total", f"{planned_total:,}", format_bytes(planned_total), f"{measured_total:,}")
    table.add_row("resident now", "", format_bytes(resident_bytes), f"{resident_bytes:,}")
    return table


def _table(title: str, figure: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("account")
    table.add_column(figure, justify="right")
    table.add_column("", justify="right")
    return table
