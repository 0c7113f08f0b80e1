"""From the options of a plan to the inputs of an engine's arithmetic, with the engine's own defaults filled in."""

from __future__ import annotations

from dataclasses import replace

from ullage.base.errors import ConfigError
from ullage.plan.architecture import Architecture
from ullage.plan.deployment.options import PlanOptions
from ullage.plan.engines.request import GIB, EngineRequest
from ullage.plan.engines.version import parse_version

LARGE_DEVICE_BYTES = 70 * GIB
"""vLLM takes steps of 8,192 tokens on devices from this size on, of 2,048 below (``vllm/engine/arg_utils.py``)."""
LARGE_STEP, SMALL_STEP = 8192, 2048
MICRO_BATCH = 512
"""llama.cpp's n_ubatch."""
STEP_OF_ULLAGE = 512
NUM_SEQUENCES = 256
"""Sequences whose logits a step keeps."""


def engine_request(architecture: Architecture, options: PlanOptions, memory_bytes: int | None) -> EngineRequest:
    """:param memory_bytes: of the smallest device; None: not known

    :raises ConfigError: not a version, or a context that is longer than the model's
    """
    engine = options.engine or "vllm"
    context = options.max_model_len or architecture.max_positions
    return EngineRequest(
        engine_name=engine,
        engine_version=None if options.engine_version is None else parse_version(options.engine_version),
        kv_dtype=options.kv_dtype,
        kv_memory_bytes=options.kv_memory_bytes(),
        gpu_memory_bytes=memory_bytes,
        block_size=options.block_size,
        max_model_len=context,
        max_num_batched_tokens=step_tokens(options, memory_bytes),
        tensor_parallel_size=options.tensor_parallel,
        pipeline_parallel_size=options.pipeline_parallel,
        expert_parallel_size=options.expert_parallel,
        mamba_ssm_dtype=options.mamba_ssm_dtype,
        mamba_cache_mode=options.mamba_cache_mode,
        num_speculative_tokens=options.speculative_tokens,
        mtp_layers=options.prediction_layers,
        n_ubatch=options.max_num_batched_tokens or MICRO_BATCH,
    )


def step_tokens(options: PlanOptions, memory_bytes: int | None) -> int:
    """Tokens of one step: as asked, or the engine's default."""
    if options.max_num_batched_tokens is not None:
        return options.max_num_batched_tokens
    if options.engine == "ullage":
        return STEP_OF_ULLAGE
    if options.engine == "llamacpp":
        return MICRO_BATCH
    large = memory_bytes is None or memory_bytes >= LARGE_DEVICE_BYTES
    return LARGE_STEP if large else SMALL_STEP


_WEIGHT_TYPES: dict[str, dict[str, object]] = {
    "fp8": {"quant_method": "fp8"},
    "int8": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "mxfp4": {"quant_method": "mxfp4"},
    "nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True},
}
_PLAIN_TYPES = {"bf16": "bfloat16", "fp16": "float16", "f16": "float16", "f32": "float32", "fp32": "float32"}
PLAIN_OF_GGML = ("bf16", "f16", "f32")


def with_weight_type(architecture: Architecture, name: str) -> Architecture:
    """The same model with every matrix in another type, as a checkpoint of that type has it.

    :raises ConfigError: an unknown type
    """
    if name in _PLAIN_TYPES:
        return replace(architecture, quantisation=None, dtype=_PLAIN_TYPES[name])
    if name not in _WEIGHT_TYPES:
        raise ConfigError(
            f"weight_type is {name!r}, a type that isn't known for this engine",
            hint="known are " + ", ".join((*_PLAIN_TYPES, *_WEIGHT_TYPES)) + "; GGML types with --engine llamacpp",
        )
    return replace(architecture, quantisation=_WEIGHT_TYPES[name])
