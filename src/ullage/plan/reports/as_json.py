"""A plan as JSON: every figure, in bytes as whole numbers."""

from __future__ import annotations

from dataclasses import asdict

from ullage.plan.deployment.alternatives import alternatives
from ullage.plan.deployment.planner import DeploymentPlan
from ullage.plan.deployment.roofline import estimate_speed
from ullage.plan.reports.engine_settings import ready_settings
from ullage.plan.reports.verdict import verdict


def plan_json(plan: DeploymentPlan) -> dict[str, object]:
    """All of a plan, by name; null where a figure doesn't apply or can't be said."""
    options, cards, speed = plan.options, plan.cards, estimate_speed(plan)
    return {
        "model": {
            "name": plan.model.name,
            "type": plan.sizing.architecture.model_type,
            "layers": plan.sizing.architecture.num_layers,
            "max_model_len": plan.sizing.architecture.max_positions,
            "source": plan.model.source,
        },
        "engine": {"name": options.engine, "version": options.engine_version},
        "device": None
        if cards is None
        else {
            "names": list(cards.names),
            "count": len(cards.names),
            "memory_bytes": list(cards.memory_bytes),
            "memory_bytes_per_rank": cards.rank_bytes,
        },
        "workload": {"max_model_len": plan.context, "concurrency": plan.concurrency, **_work(plan)},
        "weights": _weights(plan),
        "kv": _kv(plan),
        "accounts": [
            {"name": account.name, "bytes": account.num_bytes, "formula": account.formula} for account in plan.accounts
        ],
        "total_bytes_per_rank": plan.total_bytes,
        "largest": None
        if plan.pool_bytes is None
        else {"concurrency": plan.largest_concurrency(), "max_model_len": plan.largest_context()},
        "fits": plan.fits,
        "verdict": verdict(plan),
        "reasons": list(plan.reasons),
        "alternatives": [asdict(alternative) for alternative in alternatives(plan)],
        "estimate": None if speed is None else asdict(speed),
        "settings": ready_settings(plan) if plan.fits else None,
        "notes": list(plan.notes),
    }


def _work(plan: DeploymentPlan) -> dict[str, object]:
    work = plan.work
    if work is None:
        return {}
    return {
        "source": work.workload.source,
        "mean_prompt_tokens": work.workload.mean_prompt_tokens,
        "mean_output_tokens": work.workload.mean_output_tokens,
        "arrivals_per_second": work.workload.arrivals_per_second,
        "seconds_in_system": work.seconds_in_system,
        "refused_share": work.refused_share,
        "kv_bytes_of_one": {"mean": work.demand.mean_bytes, "deviation": work.demand.deviation_bytes},
    }


def _weights(plan: DeploymentPlan) -> dict[str, object]:
    weights = plan.sizing.weights
    return {
        "parameters": weights.parameters,
        "type": weights.type_name,
        "bytes": weights.num_bytes,
        "bytes_per_rank": weights.bytes_per_rank,
        "formula": plan.accounts[0].formula,
    }


def _kv(plan: DeploymentPlan) -> dict[str, object]:
    kv = plan.kv()
    known = plan.pool_bytes is not None  # without a pool nothing can be said of what it holds
    return {
        "bytes_per_token_per_rank": kv.bytes_per_token,
        "fixed_bytes_per_request": kv.fixed_bytes_per_request,
        "bytes_per_request": kv.bytes_per_request,
        "needed_bytes_per_rank": plan.kv_needed_bytes,
        "memory_bytes_per_rank": max(0, plan.pool_bytes) if plan.pool_bytes is not None else None,
        "num_blocks": kv.num_blocks if known else None,
        "capacity_tokens": kv.capacity_tokens if known else None,
        "max_concurrency": kv.max_concurrency if known else None,
        "groups": [asdict(group) for group in kv.groups],
        "formulas": list(plan.kv_formulas),
    }
