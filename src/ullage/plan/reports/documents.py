"""A plan as a document: Markdown, and a page of HTML with the picture in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from ullage.base.byte_sizes import format_bytes
from ullage.plan.deployment.alternatives import Alternative, alternatives
from ullage.plan.deployment.planned_work import PlannedWork
from ullage.plan.deployment.planner import DeploymentPlan
from ullage.plan.deployment.roofline import SpeedEstimate, estimate_speed
from ullage.plan.reports.engine_settings import ready_settings
from ullage.plan.reports.picture import plan_svg
from ullage.plan.reports.verdict import verdict

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 800px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.4em; margin-bottom: 0 } h2 { font-size: 1.1em; margin-top: 1.6em } .source { color: #666 }
.verdict { font-size: 1.1em; font-weight: 600; padding: .6em 1em; border-radius: 6px }
.fits { background: #dff3e3 } .fails { background: #fde4e4 }
table { border-collapse: collapse; width: 100% } td, th { padding: .35em .6em; border-bottom: 1px solid #ddd }
th { text-align: left; font-weight: 600 } td:nth-child(2) { text-align: right; white-space: nowrap }
tr.sum td { font-weight: 600 } pre { background: #f4f4f4; padding: .8em; overflow-x: auto } small { color: #666 }
"""


@dataclass(frozen=True, slots=True)
class Document:
    """What both forms say, in order."""

    title: str
    plan: DeploymentPlan
    alternatives: tuple[Alternative, ...]
    speed: SpeedEstimate | None
    settings: str


def document_of(plan: DeploymentPlan) -> Document:
    """All parts, worked out once."""
    where = "" if plan.cards is None else f" on {len(plan.cards.names)} x {plan.cards.name}"
    title = f"{plan.model.name}: {plan.concurrency:,} x {plan.context:,} tokens with {plan.options.engine}{where}"
    return Document(title, plan, alternatives(plan), estimate_speed(plan), ready_settings(plan) if plan.fits else "")


def account_rows(plan: DeploymentPlan) -> list[tuple[str, str, str]]:
    """Name, size and formula of every account, then the sum, the device and what is left."""
    rows = []
    for account in plan.accounts:
        rows.append((account.name, format_bytes(account.num_bytes), account.formula))
        if account.name == "KV cache":
            rows += [("", "", f"one request: {line}") for line in plan.kv_formulas]
    rows.append(("total", format_bytes(plan.total_bytes), "on each device"))
    if plan.cards is not None:
        left = plan.cards.rank_bytes - plan.total_bytes
        rows.append(("device", format_bytes(plan.cards.rank_bytes), plan.cards.name))
        rows.append(("left" if left >= 0 else "missing", format_bytes(abs(left)), ""))
    return rows


def speed_sentence(speed: SpeedEstimate) -> str:
    """An estimate with its bound."""
    return (
        f"estimated ({speed.check}): first token of a prompt of {speed.prompt_tokens:,} tokens after "
        f"{_time(speed.first_token_seconds)} (at best {_time(speed.best_first_token_seconds)}), then one every "
        f"{_time(speed.inter_token_seconds)} (at best {_time(speed.best_inter_token_seconds)}) with all requests "
        f"running: {speed.tokens_per_second:,.0f} tokens/s in all"
    )


def work_sentence(work: PlannedWork) -> str:
    """What the lengths and arrivals of requests come to."""
    load = work.workload
    parts = [
        f"{load.source}: {load.mean_prompt_tokens:,.0f} + {load.mean_output_tokens:,.0f} tokens on average, "
        f"{work.refused_share:.1%} longer than {work.context:,} tokens and refused"
    ]
    if load.arrivals_per_second is not None and work.seconds_in_system is not None:
        parts.append(
            f"{load.arrivals_per_second:.3g} a second x {_time(work.seconds_in_system)} in the system (an estimate): "
            f"{work.concurrency:,} at once"
        )
    mean = format_bytes(round(work.demand.mean_bytes))
    parts.append(f"one holds {mean} on average over its life, all together at most what is planned 99 times out of 100")
    return "; ".join(parts)


def _time(seconds: float) -> str:
    return (
        f"{seconds:.2g} s"
        if seconds >= 1
        else f"{seconds * 1000:.2g} ms"
        if seconds < 0.1
        else f"{seconds * 1000:.0f} ms"
    )


def plan_markdown(plan: DeploymentPlan) -> str:
    """A section of Markdown."""
    document = document_of(plan)
    parts = [f"## {document.title}", f"**{verdict(plan)}**", _markdown_table(account_rows(plan))]
    if plan.work is not None:
        parts.append(f"The work, {work_sentence(plan.work)}.")
    if document.alternatives:
        listed = "\n".join(f"{i}. {a.sentence}" for i, a in enumerate(document.alternatives, 1))
        parts.append(f"What would fit, the nearest first:\n\n{listed}")
    if document.speed is not None:
        parts.append(f"Speed, {speed_sentence(document.speed)}.")
    parts += [f"Note: {note}." for note in plan.notes]
    if document.settings:
        parts.append(f"```\n{document.settings.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def _markdown_table(rows: Sequence[tuple[str, str, str]]) -> str:
    lines = ["| account | size | how it comes about |", "|---|---:|---|"]
    return "\n".join([*lines, *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)])


def plan_html(plan: DeploymentPlan) -> str:
    """A page, complete in itself."""
    document = document_of(plan)
    title, sentence = escape(document.title), escape(verdict(plan))
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1>",
        f'<p class="source">dimensions from {escape(plan.model.source)}</p>',
        f'<p class="verdict {"fits" if plan.fits else "fails"}">{sentence}</p>',
        plan_svg(plan),
        _html_table(account_rows(plan)),
    ]
    if plan.work is not None:
        parts.append(f"<h2>The work</h2><p>{escape(work_sentence(plan.work))}.</p>")
    if document.alternatives:
        parts.append("<h2>What would fit, the nearest first</h2><ol>")
        parts += [f"<li>{escape(alternative.sentence)}</li>" for alternative in document.alternatives]
        parts.append("</ol>")
    if document.speed is not None:
        parts.append(f"<h2>Speed</h2><p>{escape(speed_sentence(document.speed))}.</p>")
    if document.settings:
        parts.append(f"<h2>Ready to start</h2><pre>{escape(document.settings)}</pre>")
    parts += [f"<p><small>{escape(note)}</small></p>" for note in plan.notes]
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _html_table(rows: Iterable[tuple[str, str, str]]) -> str:
    lines = ["<h2>The sum</h2><table><tr><th>account</th><th>size</th><th>how it comes about</th></tr>"]
    for name, size, formula in rows:
        mark = ' class="sum"' if name in ("total", "device", "left", "missing") else ""
        lines.append(f"<tr{mark}><td>{escape(name)}</td><td>{escape(size)}</td><td>{escape(formula)}</td></tr>")
    return "\n".join([*lines, "</table>"])
