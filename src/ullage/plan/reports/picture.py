"""A plan as a picture (SVG): one device as a stacked bar, and which contexts and concurrencies fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape

from ullage.base.byte_sizes import format_bytes
from ullage.plan.deployment.planner import DeploymentPlan

WIDTH, HEIGHT = 760, 450
BAR_LEFT, BAR_TOP, BAR_WIDTH, BAR_HEIGHT = 20, 46, 720, 44
PLOT_LEFT, PLOT_TOP, PLOT_WIDTH, PLOT_HEIGHT = 78, 208, 640, 180
COLOURS = {"weights": "#4269d0", "KV cache": "#3ca951"}
OTHER_COLOURS = ("#efb118", "#c9a86a", "#9c9c9c", "#b7b7b7")
FITS, FAILS = "#dff3e3", "#c8102e"
MOST_REQUESTS = 4096
SHORTEST = 512
_Scale = Callable[[float], float]


def plan_svg(plan: DeploymentPlan) -> str:
    """A picture for a page, complete in itself."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="system-ui, sans-serif" font-size="13" fill="#222">'
    ]
    if plan.cards is not None:
        parts += _bar(plan)
        parts += _frontier(plan)
    return "\n".join([*parts, "</svg>"])


def _bar(plan: DeploymentPlan) -> list[str]:
    assert plan.cards is not None
    memory = plan.cards.rank_bytes
    scale = BAR_WIDTH / max(memory, plan.total_bytes)
    title = f"One device of {len(plan.cards.names)}: {plan.cards.name}, {format_bytes(memory)}"
    parts = [_text(BAR_LEFT, 24, title, weight="bold")]
    left, others, legend = float(BAR_LEFT), iter(OTHER_COLOURS), float(BAR_LEFT)
    for account in plan.accounts:
        colour = COLOURS.get(account.name) or next(others, OTHER_COLOURS[-1])
        width = account.num_bytes * scale
        parts.append(_rectangle(left, BAR_TOP, width, BAR_HEIGHT, colour))
        label = f"{account.name} {format_bytes(account.num_bytes)}"
        parts.append(_rectangle(legend, BAR_TOP + BAR_HEIGHT + 12, 11, 11, colour))
        parts.append(_text(legend + 16, BAR_TOP + BAR_HEIGHT + 22, label))
        left, legend = left + width, legend + 30 + 7 * len(label)
    edge = BAR_LEFT + memory * scale
    parts.append(
        f'<rect x="{BAR_LEFT}" y="{BAR_TOP}" width="{memory * scale:.1f}" height="{BAR_HEIGHT}" fill="none" '
        'stroke="#222" stroke-width="1.5"/>'
    )
    left_over = memory - plan.total_bytes
    if left_over < 0:
        parts.append(
            f'<path d="M{edge:.1f} {BAR_TOP - 8}V{BAR_TOP + BAR_HEIGHT + 8}" stroke="{FAILS}" stroke-width="3"/>'
        )
        anchor = "end" if edge > WIDTH / 2 else "start"
        missing = f"the device ends here: {format_bytes(-left_over)} missing"
        parts.append(_text(edge, BAR_TOP + BAR_HEIGHT + 48, missing, colour=FAILS, anchor=anchor, weight="bold"))
    elif left_over * scale > 70:
        middle = edge - left_over * scale / 2
        parts.append(_text(middle, BAR_TOP + 27, f"{format_bytes(left_over)} left", anchor="middle"))
    return parts


def _frontier(plan: DeploymentPlan) -> list[str]:
    """Concurrency across, context upwards, both in doublings; below the line it fits."""
    points = _points(plan)
    chosen = (plan.concurrency, plan.context)
    most = max([count for count, _ in points] + [chosen[0], 2])
    longest = max([tokens for _, tokens in points] + [chosen[1], 2])
    shortest = min([tokens for _, tokens in points] + [chosen[1]])
    low = max(0, math.floor(math.log2(max(1, shortest))) - 1)
    high = math.log2(longest) + 0.3

    def across(count: float) -> float:
        return PLOT_LEFT + PLOT_WIDTH * math.log2(max(1, count)) / math.ceil(math.log2(most) + 0.01)

    def up(tokens: float) -> float:
        return PLOT_TOP + PLOT_HEIGHT * (1 - (math.log2(max(1, tokens)) - low) / (high - low))

    bottom = PLOT_TOP + PLOT_HEIGHT
    parts = [_text(BAR_LEFT, PLOT_TOP - 22, "What fits: context of each request, by requests at once", weight="bold")]
    if points:
        line = " ".join(f"L{across(count):.1f} {up(tokens):.1f}" for count, tokens in points)
        end = across(points[-1][0])
        parts.append(f'<path d="M{PLOT_LEFT} {bottom}{line}L{end:.1f} {bottom}Z" fill="{FITS}"/>')
        parts.append(f'<path d="M{line[1:]}" fill="none" stroke="#3ca951" stroke-width="2"/>')
    parts += _axes(across, up, most, low, math.floor(high))
    x, y = across(chosen[0]), up(chosen[1])
    colour = "#3ca951" if plan.fits else FAILS
    anchor, shift = ("end", -12) if x > WIDTH * 0.6 else ("start", 12)
    label = f"{chosen[0]:,} x {chosen[1]:,} tokens: " + ("fits" if plan.fits else "doesn't fit")
    parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{colour}" stroke="#fff" stroke-width="2"/>')
    below = y + 22 if plan.fits and y + 30 < bottom else max(PLOT_TOP + 10, y - 8)
    parts.append(_text(x + shift, below, label, weight="bold", anchor=anchor))
    return parts


def _points(plan: DeploymentPlan) -> list[tuple[int, int]]:
    """The frontier: the longest context for each number of requests, in doublings, as far as anybody would go."""
    points: list[tuple[int, int]] = []
    count = plan.options.data_parallel
    while count <= MOST_REQUESTS:
        tokens = plan.largest_context(count)
        if tokens < min(SHORTEST, plan.context) and points:
            break
        if not tokens:
            break
        points.append((count, tokens))
        count *= 2
    return points


def _axes(across: _Scale, up: _Scale, most: int, low: int, high: int) -> list[str]:
    bottom, right = PLOT_TOP + PLOT_HEIGHT, PLOT_LEFT + PLOT_WIDTH
    parts = [f'<path d="M{PLOT_LEFT} {PLOT_TOP}V{bottom}H{right}" fill="none" stroke="#666"/>']
    parts += [
        _text(across(2**power), bottom + 17, f"{2**power:,}", anchor="middle", colour="#555")
        for power in range(math.ceil(math.log2(most) + 0.01) + 1)
    ]
    for power in range(low, high + 1, 1 + (high - low) // 7):
        parts.append(_text(PLOT_LEFT - 8, up(2**power) + 4, _tokens(2**power), anchor="end", colour="#555"))
        parts.append(f'<path d="M{PLOT_LEFT} {up(2**power):.1f}H{right}" stroke="#0001"/>')
    parts.append(_text((PLOT_LEFT + right) / 2, bottom + 36, "requests at once", anchor="middle", colour="#555"))
    return parts


def _tokens(count: int) -> str:
    return f"{count // 1024:,}k" if count >= 1024 else str(count)


def _text(x: float, y: float, text: str, *, weight: str = "", anchor: str = "", colour: str = "") -> str:
    attributes = {"font-weight": weight, "text-anchor": anchor, "fill": colour}
    given = "".join(f' {name}="{value}"' for name, value in attributes.items() if value)
    return f'<text x="{x:.1f}" y="{y:.1f}"{given}>{escape(text)}</text>'


def _rectangle(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{height}" fill="{colour}"/>'
