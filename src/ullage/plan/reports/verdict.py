"""What limits a deployment, in one plain sentence."""

from __future__ import annotations

from ullage.base.byte_sizes import format_bytes
from ullage.plan.deployment.planner import DeploymentPlan

MOSTLY = 0.5


def verdict(plan: DeploymentPlan) -> str:
    """Whether it fits, and what ends first."""
    if not plan.fits:
        return "Doesn't fit: " + "; ".join(plan.reasons) + "."
    requests = f"{plan.context:,} tokens"
    if plan.pool_bytes is None:
        return f"No device is named: one request of {requests} needs {format_bytes(plan.kv_needed_bytes)} on each rank."
    most = plan.largest_concurrency()
    each = format_bytes(plan.sizing.demand(1, plan.context))
    pool = format_bytes(plan.pool_bytes)
    growth = (
        f"keys and values limit it: {pool} hold {most:,} {'request' if most == 1 else 'requests'} of {requests} "
        f"at once ({each} each), one more waits"
    )
    return f"Fits; {growth}.{_weights_remark(plan)}"


def _weights_remark(plan: DeploymentPlan) -> str:
    if plan.cards is None:
        return ""
    share = plan.sizing.weights.bytes_per_rank / plan.cards.rank_bytes
    return f" Weights alone take {share:.0%} of the device." if share >= MOSTLY else ""
