"""A plan as settings that can be pasted: flags for vLLM, SGLang and llama.cpp, a file for ``ullage serve``."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping

from ullage.plan.deployment.planner import DeploymentPlan

POOL_IN_BYTES_SINCE = (0, 11)
"""vLLM takes the size of the pool in bytes from then on; before, only a share of the device."""
LOADED_AS = {"fp8": "fp8", "nf4": "bitsandbytes", "int8": "bitsandbytes"}
"""Types that vLLM can make of plain weights; others need a checkpoint of theirs."""


def ready_settings(plan: DeploymentPlan) -> str:
    """The command, or the file, that starts the planned engine; empty for an engine whose flags aren't known here."""
    writers: Mapping[str, Callable[[DeploymentPlan], str]] = {
        "vllm": _vllm,
        "sglang": _sglang,
        "llamacpp": _llamacpp,
        "ullage": _ullage,
    }
    writer = writers.get(plan.options.engine or "vllm")
    return "" if writer is None else writer(plan)


def _command(start: str, flags: Mapping[str, object]) -> str:
    """Flags whose value is None are left out, True stands for a flag alone."""
    parts = [start]
    for name, value in flags.items():
        if value is not None and value is not False:
            parts.append(name if value is True else f"{name} {shlex.quote(str(value))}")
    return " \\\n  ".join(parts)


def _more_than_one(count: int) -> int | None:
    return count if count > 1 else None


def _vllm(plan: DeploymentPlan) -> str:
    options, request = plan.options, plan.sizing.request
    pool = plan.pool_bytes or 0
    in_bytes = request.at_least(*POOL_IN_BYTES_SINCE, unknown=True) and options.memory_utilization is None
    share = None
    if not in_bytes and plan.cards is not None:
        used = plan.sizing.weights.bytes_per_rank + pool + plan.sizing.activation_bytes
        share = options.memory_utilization or min(0.98, round(used / plan.cards.rank_bytes, 3))
    return _command(
        f"vllm serve {shlex.quote(plan.model.name)}",
        {
            "--max-model-len": plan.context,
            "--max-num-seqs": plan.requests_per_copy,
            "--max-num-batched-tokens": request.max_num_batched_tokens,
            "--kv-cache-memory-bytes": pool if in_bytes and pool > 0 else None,
            "--gpu-memory-utilization": share,
            "--kv-cache-dtype": options.kv_dtype,
            "--quantization": LOADED_AS.get(options.weight_type or ""),
            "--block-size": options.block_size,
            "--tensor-parallel-size": _more_than_one(options.tensor_parallel),
            "--pipeline-parallel-size": _more_than_one(options.pipeline_parallel),
            "--data-parallel-size": _more_than_one(options.data_parallel),
            "--enable-expert-parallel": options.expert_parallel > 1,
        },
    )


def _sglang(plan: DeploymentPlan) -> str:
    options = plan.options
    share = None
    if plan.cards is not None and plan.pool_bytes is not None and plan.pool_bytes > 0:
        share = round((plan.sizing.weights.bytes_per_rank + plan.pool_bytes) / plan.cards.rank_bytes, 3)
    kv_dtype = {"fp8": "fp8_e4m3", "bf16": "bfloat16"}.get(options.kv_dtype or "", options.kv_dtype)
    return _command(
        f"python -m sglang.launch_server --model-path {shlex.quote(plan.model.name)}",
        {
            "--context-length": plan.context,
            "--max-running-requests": plan.requests_per_copy,
            "--max-total-tokens": plan.requests_per_copy * plan.context,
            "--mem-fraction-static": share,
            "--kv-cache-dtype": kv_dtype,
            "--tp-size": _more_than_one(options.tensor_parallel),
            "--pp-size": _more_than_one(options.pipeline_parallel),
            "--dp-size": _more_than_one(options.data_parallel),
            "--ep-size": _more_than_one(options.expert_parallel),
        },
    )


def _llamacpp(plan: DeploymentPlan) -> str:
    key, _, value = (plan.options.kv_dtype or "f16").partition("/")
    requests = plan.requests_per_copy
    path = plan.model.path if plan.model.is_gguf else f"{plan.model.name}.gguf"
    return _command(
        f"llama-server -m {shlex.quote(str(path))}",
        {
            "--ctx-size": requests * plan.context,
            "--parallel": requests,
            "--kv-unified": True,
            "--n-gpu-layers": 999,
            "--cache-type-k": key,
            "--cache-type-v": value or key,
            "--flash-attn": "on",
            "--ubatch-size": plan.sizing.request.n_ubatch,
            "--tensor-split": None if plan.cards is None else plan.cards.tensor_split,
        },
    )


def _ullage(plan: DeploymentPlan) -> str:
    request = plan.sizing.request
    pool = plan.kv_needed_bytes if plan.options.kv_memory is None else plan.pool_bytes
    lines = {
        "max_model_len": plan.context,
        "max_num_seqs": max(32, plan.concurrency),
        "max_num_batched_tokens": request.max_num_batched_tokens,
        "block_size": plan.options.block_size or 32,
        "kv_memory": pool,
        "weight_type": f'"{plan.sizing.weights.type_name}"',
    }
    body = "".join(f"{name} = {value}\n" for name, value in lines.items())
    return f"# ullage serve {shlex.quote(str(plan.model.path or plan.model.name))} --config ullage.toml\n{body}"
