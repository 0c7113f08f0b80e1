"""A plan in the terminal: every account with its formula, then what limits the deployment."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ullage.base.byte_sizes import format_bytes
from ullage.plan.deployment.alternatives import alternatives
from ullage.plan.deployment.planner import DeploymentPlan
from ullage.plan.deployment.questions import DeviceChoice
from ullage.plan.deployment.roofline import estimate_speed
from ullage.plan.reports.documents import speed_sentence, work_sentence
from ullage.plan.reports.engine_settings import ready_settings
from ullage.plan.reports.verdict import verdict
from ullage.plan.start_up_log import Comparison, StartUpLog

COLOURS = {"weights": "blue", "KV cache": "green"}
OTHER_COLOUR = "yellow"
BAR_WIDTH = 60


def print_plan(console: Console, plan: DeploymentPlan) -> None:
    """The whole plan."""
    console.print(_headline(plan))
    console.print(_accounts(plan))
    if plan.cards is not None:
        console.print(_bar(plan))
    console.print()
    console.print(Text(verdict(plan), style="bold green" if plan.fits else "bold red"))
    found = alternatives(plan)
    if found:
        console.print("\nwhat would fit, the nearest first:")
        for number, alternative in enumerate(found, 1):
            console.print(f"  {number}. {alternative.sentence}")
    if plan.work is not None:
        console.print(Text(f"\nthe work, {work_sentence(plan.work)}", style="dim"))
    speed = estimate_speed(plan)
    if speed is not None:
        console.print(Text(f"\nspeed, {speed_sentence(speed)}", style="dim"))
    settings = ready_settings(plan) if plan.fits and plan.cards is not None else ""
    if settings:
        console.print(Text(f"\n{settings.rstrip()}"), soft_wrap=True)
    for note in plan.notes:
        console.print(Text(f"note: {note}", style="dim"))


def _headline(plan: DeploymentPlan) -> Text:
    options = plan.options
    engine = f"{options.engine} {options.engine_version or ''}".strip()
    where = "no device named" if plan.cards is None else f"{len(plan.cards.names)} x {plan.cards.name}"
    return Text.assemble(
        (plan.model.name, "bold"),
        f" with {engine} on {where}: {plan.concurrency:,} x {plan.context:,} tokens\n",
        (f"dimensions from {plan.model.source}", "dim"),
    )


def _accounts(plan: DeploymentPlan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("on each device")
    table.add_column("", justify="right")
    table.add_column("how it comes about", overflow="fold")
    for account in plan.accounts:
        name = Text(account.name, style=COLOURS.get(account.name, OTHER_COLOUR))
        table.add_row(name, format_bytes(account.num_bytes), account.formula)
        if account.name == "KV cache":
            for line in plan.kv_formulas:
                table.add_row("  one request", "", Text(line, style="dim"), style="dim")
    table.add_section()
    table.add_row("total", format_bytes(plan.total_bytes), "", style="bold")
    if plan.cards is not None:
        memory = plan.cards.rank_bytes
        left = memory - plan.total_bytes
        table.add_row("device", format_bytes(memory), plan.cards.name)
        table.add_row("left" if left >= 0 else "missing", format_bytes(abs(left)), "", style="" if left >= 0 else "red")
    return table


def _bar(plan: DeploymentPlan) -> Text:
    """One device as a line: a part for each account, and where the device ends when they are more than it has."""
    assert plan.cards is not None
    scale = max(plan.total_bytes, plan.cards.rank_bytes)
    bar, used = Text("|"), 0
    ends = 0
    for account in plan.accounts:
        ends += account.num_bytes
        width = round(BAR_WIDTH * ends / scale) - used
        bar.append("█" * width, style=COLOURS.get(account.name, OTHER_COLOUR))
        used += width
    bar.append("░" * (BAR_WIDTH - used), style="dim")
    bar.append("|  ")
    for account in plan.accounts:
        bar.append("█ ", style=COLOURS.get(account.name, OTHER_COLOUR))
        bar.append(f"{account.name.split(',')[0]}  ", style="dim")
    if plan.total_bytes > plan.cards.rank_bytes:
        edge = round(BAR_WIDTH * plan.cards.rank_bytes / scale)
        bar.append("\n" + " " * (edge + 1) + "^ the device ends here", style="red")
    return bar


def print_choices(console: Console, choices: tuple[DeviceChoice, ...]) -> None:
    """Devices that do, the least memory in all first."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("fewest", "device", "memory in all", "used of each", "requests at once, most"):
        table.add_column(title, justify="left" if title == "device" else "right")
    for choice in choices:
        assert choice.plan.cards is not None
        used = choice.plan.total_bytes / choice.plan.cards.rank_bytes
        memory = format_bytes(choice.total_memory_bytes)
        table.add_row(str(choice.count), choice.device, memory, f"{used:.0%}", f"{choice.plan.largest_concurrency():,}")
    console.print(table if choices else "no device of the catalogue does, up to 16 of each")


def print_names(console: Console, models: tuple[str, ...], devices: tuple[str, ...]) -> None:
    """What the catalogue has."""
    console.print(Text.assemble(("models: ", "bold"), ", ".join(models)), soft_wrap=True)
    console.print(Text.assemble(("devices: ", "bold"), ", ".join(devices)), soft_wrap=True)


def print_comparison(console: Console, model: str, log: StartUpLog, lines: tuple[Comparison, ...]) -> None:
    """Planned against actual, a line for each figure of the log."""
    console.print(Text.assemble((model, "bold"), f" with {log.engine} {log.version or '(release not said)'}"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("figure", "planned", "actual", "difference", "likely cause"):
        table.add_column(title, justify="left" if title in ("figure", "likely cause") else "right", overflow="fold")
    for line in lines:
        planned = (
            "-" if line.planned is None else f"{line.planned:,.10g}" if line.planned > 1e4 else f"{line.planned:.4g}"
        )
        difference = "-" if line.difference is None else f"{line.difference:+.2%}"
        actual = f"{line.actual:,.10g}"
        table.add_row(line.name, planned, actual, difference, line.cause, style="yellow" if line.cause else "")
    console.print(table)
