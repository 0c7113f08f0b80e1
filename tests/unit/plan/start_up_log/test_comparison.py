"""Logs read back: figures found, planned beside actual, and why they differ."""

from __future__ import annotations

import json

import pytest
from tests.unit.plan.start_up_cases import CASES

from ullage.base.errors import ConfigError
from ullage.plan.start_up_log import compare, read_log

VLLM = """
INFO 07-01 Initializing a V1 LLM engine (v0.11.0) with config: model='meta-llama/Llama-3.1-8B-Instruct', \
max_seq_len=20000, tensor_parallel_size=1, pipeline_parallel_size=1, kv_cache_dtype=auto
INFO Model loading took {weights} GiB and 3.2 seconds
INFO Available KV cache memory: 3.81 GiB
INFO GPU KV cache size: {tokens} tokens
INFO Maximum concurrency for 20,000 tokens per request: 1.56x
"""
SGLANG = """
server_args=ServerArgs(model_path='Qwen/Qwen3-30B-A3B', tp_size=1, page_size=1)
KV Cache is allocated. #tokens: 122420, K size: 5.60 GB, V size: 5.60 GB
"""
LLAMACPP = """
llama_context: n_ctx         = 131072
llama_context: n_ubatch      = 512
llama_kv_cache_unified: size = 3072.00 MiB (131072 cells, 12 layers, 1/1 seqs), K (f16): 1536.00 MiB, \
V (f16): 1536.00 MiB
"""


def config(name: str) -> dict:
    return json.loads((CASES / f"configs/{name}.json").read_bytes())


@pytest.mark.parametrize(
    ("text", "model", "figures"),
    [
        (VLLM.format(weights="14.9888", tokens="31,232"), "llama31-8b-3090-20k", 3),
        (SGLANG, "qwen3-30b-a3b-ktransformers", 2),
        (LLAMACPP, "gptoss20b-llamacpp", 3),
    ],
    ids=["vllm", "sglang", "llamacpp"],
)
def test_a_log_of_a_start_that_went_as_planned_has_no_difference(text, model, figures):
    lines = compare(config(model), read_log(text))
    assert len(lines) == figures
    assert [(line.name, line.cause) for line in lines if line.cause] == []
    assert all(abs(line.difference) < 0.02 for line in lines)


def test_a_difference_names_its_likely_cause():
    text = VLLM.format(weights="7.6", tokens="62,464")
    causes = {line.name: line.cause for line in compare(config("llama31-8b-3090-20k"), read_log(text))}
    assert "8 bits" in causes["weights_gib_per_rank"]
    assert "fp8" in causes["capacity_tokens"]
    assert causes["max_concurrency"] == ""


def test_inputs_and_version_are_read_from_the_log():
    log = read_log(VLLM.format(weights="14.9888", tokens="31,232"))
    assert (log.engine, log.version, log.model) == ("vllm", "0.11.0", "meta-llama/Llama-3.1-8B-Instruct")
    assert log.given["kv_memory_gib"] == 3.81
    assert log.given["max_model_len"] == 20000


def test_a_text_without_figures_is_refused():
    with pytest.raises(ConfigError, match="no line about memory"):
        read_log("hello\n")
