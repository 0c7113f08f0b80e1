"""How fast a deployment can be at best and about will be: a roofline. An estimate, labelled as one.

    inter-token latency     (weights that a step reads + keys and values of all requests) / bandwidth
    time to first token     2 x parameters that a token passes x prompt tokens / compute

Source of the method: Williams et al., "Roofline", 2009; for decoding: Pope et al., arXiv:2211.05102.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ullage.plan.architecture import Architecture
from ullage.plan.deployment.activations import experts_per_token
from ullage.plan.deployment.cards import Cards
from ullage.plan.deployment.options import PlanOptions
from ullage.plan.deployment.planned_model import PlannedModel
from ullage.plan.deployment.sizing import Sizing

if TYPE_CHECKING:
    from ullage.plan.deployment.planner import DeploymentPlan

SHARES = (0.7, 0.5)
"""Of bandwidth and compute that good kernels reach. The estimate uses these, the bound doesn't."""
OWN_SHARES = (0.77, 0.74)
"""Those of Ullage's own engine: the middle of what its benchmarks had on three models (BENCHMARKS.md)."""
OWN_CHECK = "within 15 % of what three models had on two cores with AVX-512"
NO_CHECK = "not checked against a measurement"


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
    check: str
    """How far off it was where it was compared."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Seconds of a step and of a prompt on known devices. ``share_*`` of 1 are the bounds."""

    sizing: Sizing
    options: PlanOptions
    bandwidth: float
    flops: float
    chosen_experts: int

    @property
    def likely(self) -> tuple[float, float]:
        """Shares of bandwidth and compute."""
        return OWN_SHARES if self.options.engine == "ullage" else SHARES

    def step_seconds(self, requests: int, kv_bytes: float, bandwidth_share: float, compute_share: float) -> float:
        """One token of each of so many requests of one copy."""
        active, touched = _shares(self.sizing.architecture, self.chosen_experts, requests)
        # Stages of a pipeline work one after another for one token: their times add up.
        read = (self.sizing.weights.bytes_per_rank * touched + kv_bytes) * self.options.pipeline_parallel
        work = self._work(active) * requests
        return max(read / self.bandwidth / bandwidth_share, work / self.flops / compute_share)

    def prompt_seconds(self, tokens: float, requests: int, bandwidth_share: float, compute_share: float) -> float:
        active, _ = _shares(self.sizing.architecture, self.chosen_experts, requests)
        read = self.sizing.weights.bytes_per_rank * self.options.pipeline_parallel
        work = self._work(active) * tokens
        return max(work / self.flops / compute_share, read / self.bandwidth / bandwidth_share)

    def _work(self, active: float) -> float:
        return 2 * self.sizing.weights.parameters * active / self.options.tensor_parallel


def roofline_of(model: PlannedModel, sizing: Sizing, options: PlanOptions, cards: Cards | None) -> Roofline | None:
    """None: bandwidth or compute of the device isn't known."""
    if cards is None or cards.bandwidth is None:
        return None
    flops = cards.flops.get("bf16") or cards.flops.get("fp16") or cards.flops.get("fp32")
    if not flops:
        return None
    return Roofline(sizing, options, cards.bandwidth, flops, experts_per_token(model.config))


def estimate_speed(plan: DeploymentPlan) -> SpeedEstimate | None:
    """None: bandwidth or compute of the device isn't known."""
    roofline = roofline_of(plan.model, plan.sizing, plan.options, plan.cards)
    if roofline is None:
        return None
    requests = plan.requests_per_copy
    prompt = plan.options.prompt_tokens or max(1, plan.context // 2)
    best, likely = (1.0, 1.0), roofline.likely
    step = roofline.step_seconds(requests, plan.kv_needed_bytes, *likely)
    return SpeedEstimate(
        prompt,
        roofline.prompt_seconds(prompt, requests, *likely),
        roofline.prompt_seconds(prompt, requests, *best),
        step,
        roofline.step_seconds(requests, plan.kv_needed_bytes, *best),
        plan.concurrency / step,
        OWN_CHECK if plan.options.engine == "ullage" else NO_CHECK,
    )


def _shares(architecture: Architecture, chosen: int, requests: int) -> tuple[float, float]:
    """Which part of the parameters one token passes, and which part of the weights a step of all requests reads."""
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
    by_all = 1 - (1 - used) ** requests
    return 1 - share + share * used, 1 - share + share * by_all
