from __future__ import annotations

import pytest
from tests.unit.plan.start_up_cases import cases

from ullage.base.errors import ConfigError
from ullage.plan.architecture import architecture_of
from ullage.plan.engines.request import EngineRequest
from ullage.plan.kv_memory import KVMemory, kv_memory

CASES = {case.name: case for case in cases("exact", "rounded")}
GIB = 1024**3


def memory_of(name: str, **request: object) -> KVMemory:
    values = {"engine_name": "vllm", **request}
    return kv_memory(architecture_of(CASES[name].config), EngineRequest(**values))


def test_a_dense_model_has_one_rate_and_nothing_fixed():
    memory = memory_of("llama31-8b-3090-20k", kv_memory_bytes=4 * GIB, max_model_len=20_000)
    assert memory.bytes_per_token == 131_072
    assert memory.fixed_bytes_per_request == 0
    assert memory.bytes_per_request == 1250 * 16 * 131_072
    assert memory.num_blocks == 2048
    assert memory.memory_bytes == 4 * GIB
    assert memory.capacity_tokens == 2048 * 16
    assert [(group.kind, group.num_layers, group.blocks_per_request) for group in memory.groups] == [("full", 32, 1250)]


def test_a_hybrid_has_no_single_rate_but_a_fixed_part():
    memory = memory_of("qwen35-27b-vllm-h20", max_model_len=32_768, mamba_cache_mode="none", num_gpu_blocks=1487)
    assert memory.bytes_per_token is None
    block_bytes = 16 * 3_211_264
    assert memory.fixed_bytes_per_request == 3 * block_bytes
    assert memory.bytes_per_request == 45 * block_bytes
    assert [group.kind for group in memory.groups].count("mamba") == 3
    assert sum(group.blocks_per_request or 0 for group in memory.groups) == 45


def test_windows_are_a_fixed_part_too():
    memory = memory_of("gptoss120b-hfmem", max_model_len=131_072, max_num_batched_tokens=2048)
    window_blocks = -(-(127 + 2048) // 16) + 1
    assert memory.fixed_bytes_per_request == window_blocks * 18 * 32_768
    assert memory_of("gptoss120b-hfmem", max_model_len=131_072).fixed_bytes_per_request is None


def test_other_engines_count_a_requests_state_as_fixed():
    llama = memory_of("qwen27b-q8-llamacpp", engine_name="llamacpp", n_ctx=4096, type_k="q8_0", type_v="q8_0")
    state = 48 * (3 * 10_240 + 48 * 128 * 128) * 4
    assert llama.fixed_bytes_per_request == state
    assert llama.bytes_per_token == 16 * 2 * 1024 // 32 * 34
    assert llama.groups == ()
    sglang = memory_of("qwen27b-q8-llamacpp", engine_name="sglang", max_total_tokens=1000)
    assert sglang.fixed_bytes_per_request == 48 * (3 * 10_240 * 2 + 48 * 128 * 128 * 4)
    assert sglang.capacity_tokens == 1000


def test_an_unknown_engine_is_refused_by_name():
    with pytest.raises(ConfigError, match="engine_name"):
        memory_of("llama31-8b-3090-20k", engine_name="word")
