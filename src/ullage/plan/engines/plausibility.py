"""Inputs that can't be true together. Such a set is called implausible, with the reason, and never fitted to."""

from __future__ import annotations

from ullage.plan.architecture import Architecture
from ullage.plan.engines.request import GIB, EngineReport, EngineRequest

PRINTED_ROUNDING = GIB // 200
"""Half of the last printed digit of a size in GiB."""
LEAST_SHARE = 0.1
"""Engines fill the memory that weights leave. A pool below this share of it is an estimate gone wrong."""
ESTIMATE_SINCE = (0, 8, 5)
"""From then on vLLM that can't hold one request says how much it needs and what would fit, and ends."""
_SERVED_BEFORE = (
    "baichuan bloom chatglm command-r cohere cohere2 dbrx deepseek deepseek_v2 deepseek_v3 exaone falcon gemma gemma2 "
    "gemma3 gemma3_text gpt2 gpt_bigcode gpt_neox gptj granite granitemoe internlm internlm2 jamba llama llama4 "
    "llama4_text mamba minicpm minicpm3 mistral mistral3 mixtral mllama molmo mpt nemotron olmo olmo2 olmoe opt orion "
    "persimmon phi phi3 phi3small phimoe pixtral qwen qwen2 qwen2_moe qwen2_vl qwen2_5_vl solar stablelm starcoder2 "
    "xverse zamba2"
)
SERVED_BEFORE_ESTIMATE = frozenset(_SERVED_BEFORE.split())
"""Model types of vLLM releases before that; what isn't here can only have been served by one that prints estimates."""


def check_memory(report: EngineReport, request: EngineRequest, weights_bytes: int | None) -> None:
    """Whether the pool fits on the device beside the weights, and fills what they leave.

    :param weights_bytes: of one rank, derived from the model; used where none are given; None: not derived
    """
    kv_bytes = report.figures.get("kv_bytes")
    if kv_bytes is None or request.gpu_memory_bytes is None:
        return
    weights = request.weights_bytes or weights_bytes or 0
    free = request.gpu_memory_bytes - weights
    gib = f"{kv_bytes / GIB:.2f} GiB"
    if kv_bytes > free:
        reason = f"the pool would take {gib}, more than the {max(free, 0) / GIB:.2f} GiB there are for it"
    elif request.weights_bytes is not None and kv_bytes < LEAST_SHARE * free:
        reason = f"the pool would take {gib} only, of {free / GIB:.2f} GiB that weights leave"
    else:
        return
    report.reasons.append(reason)
    report.figures["implied_kv_gib"] = kv_bytes / GIB


def check_agreement(report: EngineReport, request: EngineRequest, *, block_bytes: int, tokens_per_block: int) -> None:
    """Whether blocks or tokens agree with the memory given for them, to the last printed digit and one block."""
    if request.kv_memory_bytes is None:
        return
    kv_bytes, blocks = report.figures.get("kv_bytes"), request.kv_memory_bytes // block_bytes
    if request.num_gpu_blocks is not None and kv_bytes is not None:
        tolerated = PRINTED_ROUNDING + block_bytes
        if abs(kv_bytes - request.kv_memory_bytes) > tolerated:
            given = f"{request.kv_memory_bytes / GIB:.2f} GiB"
            report.reasons.append(f"the blocks take {kv_bytes / GIB:.2f} GiB, but the memory for them is {given}")
            report.figures["implied_kv_gib"] = kv_bytes / GIB
    elif request.capacity_tokens is not None:
        rounding = PRINTED_ROUNDING // block_bytes + 1
        if abs(request.capacity_tokens // tokens_per_block - blocks) > rounding:
            report.reasons.append(
                f"the memory holds {blocks * tokens_per_block:,} tokens, not {request.capacity_tokens:,}"
            )
            report.figures["implied_capacity_tokens"] = blocks * tokens_per_block


def check_request(architecture: Architecture, report: EngineReport, request: EngineRequest) -> None:
    """Whether the pool holds one request of the longest allowed length; an engine whose pool doesn't never serves.

    A release that says what it needed and what would fit explains such a start, and its figures stand. Of older or
    unknown releases the two inputs can't both be those of a server that ran: one of them is another rank's or run's.
    """
    concurrency = report.figures.get("max_concurrency")
    if concurrency is None or concurrency >= 1:
        return
    needed = report.figures.get("kv_gib_needed") or 0
    reason = f"one request of {request.max_model_len:,} tokens needs {needed:.2f} GiB, more than the pool has"
    report.notes.append(f"the engine doesn't start: {reason}")
    surely_newer = architecture.model_type not in SERVED_BEFORE_ESTIMATE
    if request.at_least(*ESTIMATE_SINCE, unknown=surely_newer):
        return
    report.reasons.append(reason)
    report.figures["implied_capacity_tokens"] = report.figures.get("capacity_tokens")
