"""Figures and inputs in the start-up logs of vLLM, SGLang, llama.cpp and Ullage, by the lines that engines print."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ullage.base.errors import ConfigError

_NUMBER = r"([\d,]+(?:\.\d+)?)"
OWN_INPUTS: Mapping[str, str] = {
    "block_size": rf"KV pool: [\d,]+ blocks of {_NUMBER} tokens",
    "max_num_batched_tokens": rf"one step of {_NUMBER} tokens",
    "num_threads": rf"tokens, {_NUMBER} threads",
    "max_num_seqs": rf"{_NUMBER} sequences x",
    "kv_type": r"weights, (\w+) KV",
}
"""What Ullage's own plan is worked out from, under the names of ``PlanRequest``."""
_MARKS: Mapping[str, str] = {
    "vllm": r"GPU KV cache size|# GPU blocks|Available KV cache memory|vLLM API server|vllm[./]",
    "sglang": r"KV Cache is allocated|max_total_num_tokens|sglang",
    "llamacpp": r"llama_kv_cache|llama_context|llm_load|load_tensors|print_info",
    "ullage": r"Memory plan|KV pool: [\d,]+ blocks of",
}
_INPUTS: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "kv_memory_gib": rf"(?:Available KV cache memory:|reserved for KV Cache is) ?{_NUMBER} ?GiB",
        "max_model_len": r"(?:max_seq_len=|[Uu]sing max model len |Maximum concurrency for )([\d,]+)",
        "tensor_parallel_size": r"tensor_parallel_size=(\d+)",
        "pipeline_parallel_size": r"pipeline_parallel_size=(\d+)",
        "max_num_batched_tokens": r"max_num_batched_tokens=(\d+)",
        "kv_dtype": r"kv_cache_dtype='?(\w+)",
    },
    "sglang": {
        "max_total_tokens": r"(?:#tokens: |max_total_num_tokens=)([\d,]+)",
        "mamba_slots": r"max_mamba_cache_size: (\d+)",
        "tensor_parallel_size": r"tp_size=(\d+)",
        "page_size": r"page_size=(\d+)",
        "kv_dtype": r"kv_cache_dtype='?(\w+)",
    },
    "llamacpp": {
        "n_ctx": r"n_ctx +[=:] +(\d+)",
        "n_seq_max": r"n_seq_max +[=:] +(\d+)",
        "n_ubatch": r"n_ubatch +[=:] +(\d+)",
        "type_k": r"K \((\w+)\):",
        "type_v": r"V \((\w+)\):",
    },
    "ullage": OWN_INPUTS,
}
_ACTUAL: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "weights_gib_per_rank": rf"(?:[Ll]oading (?:model )?(?:weights )?took|model weights take) ?{_NUMBER} ?Gi?B",
        "num_gpu_blocks": r"(?:# GPU blocks|# cuda blocks|num_gpu_blocks is): ?([\d,]+)",
        "capacity_tokens": r"GPU KV cache size: ?([\d,]+) tokens",
        "max_concurrency": rf"Maximum concurrency for [\d,]+ tokens per request: ?{_NUMBER}x",
        "block_tokens": r"Setting attention block size to (\d+) tokens",
        "mamba_pad_percent": rf"Padding mamba page size by {_NUMBER}%",
    },
    "sglang": {
        "k_gib": rf"\bK size: ?{_NUMBER} ?GB",
        "v_gib": rf"\bV size: ?{_NUMBER} ?GB",
        "kv_gib": rf"KV size: ?{_NUMBER} ?GB",
        "conv_gib": rf"conv_state size: ?{_NUMBER} ?GB",
        "ssm_gib": rf"ssm_state size: ?{_NUMBER} ?GB",
    },
    "llamacpp": {
        "kv_mib": rf"llama_kv_cache\w*: +size += +{_NUMBER} MiB",
        "k_mib": rf"K \(\w+\): +{_NUMBER} MiB",
        "v_mib": rf"V \(\w+\): +{_NUMBER} MiB",
        "r_mib": rf"R \(\w+\): +{_NUMBER} MiB",
        "s_mib": rf"S \(\w+\): +{_NUMBER} MiB",
    },
    "ullage": {
        "weights": rf"\bweights {_NUMBER} ",
        "kv_pool": rf"\bkv_pool {_NUMBER} ",
        "workspace": rf"\bworkspace {_NUMBER} ",
        "logits": rf"\blogits {_NUMBER} ",
        "runtime": rf"\bruntime {_NUMBER} ",
        "num_blocks": rf"KV pool: {_NUMBER} blocks",
        "capacity_tokens": rf"blocks of \d+ tokens, (?:at least )?{_NUMBER} tokens in all",
    },
}
_VERSIONS: Mapping[str, str] = {
    "vllm": r"(?:version |\(v|vLLM )v?(\d+\.\d+(?:\.\d+)?)",
    "sglang": r"sglang[^\n]{0,20}?(\d+\.\d+\.\d+)",
    "llamacpp": r"build: (\d+)",
    "ullage": r"ullage (\d+\.\d+\.\d+)",
}
_MODEL = re.compile(r"model(?:_path)?='([^']+)'|(\S+), loaded in [\d.]+ s")
MAX_LOG_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class StartUpLog:
    """What a log says.

    :ivar model: as the engine was told; None: the log doesn't name it
    :ivar given: inputs of the engine's arithmetic, under the names of ``engines.request``
    :ivar actual: what the engine then had, under the names of its report
    """

    engine: str
    version: str | None
    model: str | None
    given: Mapping[str, object]
    actual: Mapping[str, float]


def read_log(text: str) -> StartUpLog:
    """:raises ConfigError: no engine's lines are in it"""
    counts = {engine: len(re.findall(mark, text)) for engine, mark in _MARKS.items()}
    engine = max(counts, key=lambda name: counts[name])
    if engine == "ullage":
        text = re.sub(r"[\s│┃|]+", " ", text)  # its table without lines and line breaks
    actual = {name: float(found) for name, pattern in _ACTUAL[engine].items() if (found := _first(pattern, text))}
    if not counts[engine] or not actual:
        raise ConfigError(
            "the log has no line about memory that vLLM, SGLang, llama.cpp or Ullage print when they start",
            hint="give the whole log from the start of the engine until it is ready",
        )
    given = {name: _value(found) for name, pattern in _INPUTS[engine].items() if (found := _first(pattern, text))}
    if "kv_memory_gib" not in given and "num_gpu_blocks" in actual:
        given["num_gpu_blocks"] = int(actual["num_gpu_blocks"])
    model = _MODEL.search(text)
    version = _first(_VERSIONS[engine], text)
    return StartUpLog(engine, version, model[1] or model[2] if model else None, given, actual)


def _first(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text)
    return None if found is None else found[1].replace(",", "")


def _value(text: str) -> object:
    if text.isdigit():
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text
