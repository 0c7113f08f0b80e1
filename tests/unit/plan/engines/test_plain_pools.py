from __future__ import annotations

import pytest
from tests.unit.plan.start_up_cases import cases

from ullage.base.errors import ConfigError
from ullage.plan.as_engine import as_engine

CASES = {case.name: case for case in cases("exact", "negative-control")}


def report(name: str, engine: str, kv_dtype: str = "fp16", **given: object) -> dict:
    file = {"engine_name": engine, "engine_version": None, "kv_dtype_name": kv_dtype, "given": given}
    return as_engine(CASES[name].config, file)


def test_tokens_follow_from_bytes_in_whole_blocks():
    printed = report("llama2-7b-trtllm", "trtllm", kv_memory_gib=64.75)
    assert printed["capacity_tokens"] == int(64.75 * 1024**3) // (524_288 * 64) * 64


def test_tokens_that_do_not_fit_the_memory_given_are_implausible():
    assert report("llama2-7b-trtllm", "trtllm", capacity_tokens=132_608, kv_memory_gib=64.75)["implausible"] is False
    assert report("llama2-7b-trtllm", "trtllm", capacity_tokens=132_608, kv_memory_gib=32)["implausible"] is True


@pytest.mark.parametrize(("kv_dtype", "per_head"), [("int8", 132), ("int4", 68), ("fp8", 128)])
def test_scales_of_lmdeploys_integer_caches_count(kv_dtype, per_head):
    printed = report("llama2-7b-trtllm", "lmdeploy", kv_dtype, num_gpu_blocks=1)
    assert printed["kv_bytes_per_token"] == 32 * 32 * 2 * per_head


def test_a_state_is_refused_by_name():
    with pytest.raises(ConfigError, match="RecurrentState"):
        report("qwen35-27b-vllm-h20", "trtllm", capacity_tokens=5)
