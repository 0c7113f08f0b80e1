"""How fast a deployment can be at best and about will be: a roofline. An estimate, labelled as one.

    inter-token latency     (weights that a step reads + keys and values of all requests) / bandwidth
    time to first token     2 x parameters that a token passes x prompt tokens / compute

Source of the method: Williams et al., "Roofline", 2009; for decoding: Pope et al., arXiv:2211.05102.
"""

from __future__ import annotations

from dataclasses import dataclass

from ullage.plan.deployment.activations import experts_per_token
from ullage.plan.deployment.planner import DeploymentPlan

BANDWIDTH_SHARE = 0.7
COMPUTE_SHARE = 0.5
"""What good kernels reach of the peaks; the estimate uses these, the bound doesn't."""


@dataclass(frozen=True, slots=True)
class SpeedEstimate:
    """Seconds, and tokens a second.

    :ivar inter_token_seconds: between two tokens of a request, with all requests running at full context
    :ivar best_inter_token_seconds: the same at the peaks of the device: it can't be less
    :ivar first_token_seconds: from the start of a prompt's computation; waiting comes on top
    """

    prompt_tokens: int
    first_token_seconds: float
    best_first_token_seconds: float
    inter_token_seconds: float
    best_inter_token_seconds: float
    tokens_per_second: float


def estimate_speed(plan: DeploymentPlan) -> SpeedEstimate | None:
    """None: bandwidth or compute of the device isn't known."""
    cards = plan.cards
    if cards is None or cards.bandwidth is None:
        return None
    flops = cards.flops.get("bf16") or cards.flops.get("fp16") or cards.flops.get("fp32")
    if not flops:
        return None
    stages = plan.options.pipeline_parallel
    active, touched = _shares(plan)
    requests = plan.requests_per_copy
    prompt = plan.options.prompt_tokens or max(1, plan.context // 2)
    # Stages of a pipeline work one after another for one token: their times add up.
    read = (plan.sizing.weights.bytes_per_rank * touched + plan.kv_needed_bytes) * stages
    work = 2 * plan.sizing.weights.parameters * active / plan.options.tensor_parallel
    step = max(read / cards.bandwidth, work * requests / flops)
    first = max(work * prompt / flops, plan.sizing.weights.bytes_per_rank * stages / cards.bandwidth)
    slower = max(read / cards.bandwidth / BANDWIDTH_SHARE, work * requests / flops / COMPUTE_SHARE)
    slower_first = max(
        work * prompt / flops / COMPUTE_SHARE,
        plan.sizing.weights.bytes_per_rank * stages / cards.bandwidth / BANDWIDTH_SHARE,
    )
    return SpeedEstimate(prompt, slower_first, first, slower, step, plan.concurrency / slower)


def _shares(plan: DeploymentPlan) -> tuple[float, float]:
    """Which part of the parameters one token passes, and which part of the weights a step of all requests reads."""
    chosen = experts_per_token(plan.model.config)
    architecture = plan.sizing.architecture
    total = expert = 0
    num_experts = 1
    for layer in architecture.layers:
        for weight in layer.weights:
            total += weight.parameters
            if weight.expert and weight.columns > 1:
                expert += weight.parameters
                num_experts = weight.count
    outer = sum(weight.parameters for weight in (*architecture.outer_weights, *architecture.final_weights))
    share = expert / max(1, total + outer)
    used = min(1.0, chosen / num_experts)
    by_all = 1 - (1 - used) ** plan.requests_per_copy
    return 1 - share + share * used, 1 - share + share * by_all
