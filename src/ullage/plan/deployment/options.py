"""What is asked of a deployment: the engine, the devices, and the work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ullage.base.byte_sizes import parse_bytes
from ullage.base.config import setting
from ullage.base.errors import ConfigError

DEFAULT_HEADROOM = 0.25
MOST_DEVICES = 16_384


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """One deployment. Sizes of memory are those of one device. What can't be honoured is refused.

    Three rules say how much of a device the pool of keys and values gets: ``kv_memory`` states it; with
    ``memory_utilization`` it is what weights and activations leave of that share, as vLLM counts; otherwise it is what
    leaves ``headroom`` on top of weights and pool.
    """

    engine: Literal["vllm", "sglang", "llamacpp", "trtllm", "lmdeploy", "ullage"] | None = setting(
        None, "Engine that runs the model.", shown_default="vllm; llamacpp for GGUF"
    )
    engine_version: str | None = setting(
        None, "Its version, like 0.11.0, b4500 or <0.21: rules changed.", shown_default="the newest known"
    )
    device: str | None = setting(
        None, "Device by its name in the catalogue; unequal ones after commas.", shown_default="detected"
    )
    memory: str | None = setting(
        None,
        "Memory of one device instead, like 23.58GiB or 24GB; unequal ones after commas.",
        shown_default="the device's",
    )
    measure: bool = setting(
        False, "Measure this machine's memory and processor, for the estimate of speed; takes a second or two."
    )
    memory_utilization: float | None = setting(
        None, "Share of the memory that the engine may take, as vLLM counts; replaces headroom.", shown_default="none"
    )
    headroom: float | None = setting(
        None,
        "Activations and fragmentation, as a share of weights and keys and values.",
        shown_default="0.25; 0 for ullage, whose accounts are exact",
        at_least=0,
    )
    kv_memory: str | None = setting(
        None, "Size of the pool of keys and values on one device, like 3.81GiB.", shown_default="what is left"
    )
    kv_dtype: str | None = setting(
        None, "Type of keys and values, like bf16, fp8 or q8_0.", shown_default="the model's"
    )
    weight_type: str | None = setting(
        None, "Type of weights, like bf16, fp8, awq, nvfp4 or q4_k.", shown_default="as the model has them"
    )
    block_size: int | None = setting(None, "Tokens in a block of the pool.", shown_default="the engine's", at_least=1)
    tensor_parallel: int = setting(1, "Devices that share every layer.", at_least=1)
    pipeline_parallel: int = setting(1, "Stages that the layers are cut into.", at_least=1)
    expert_parallel: int = setting(1, "Devices that experts are given out to whole.", at_least=1)
    data_parallel: int = setting(1, "Copies of the whole that share the requests.", at_least=1)
    max_model_len: int | None = setting(
        None, "Context: prompt and output tokens of one request.", shown_default="the model's", at_least=1
    )
    concurrency: int | None = setting(None, "Requests of that context at once.", shown_default="1", at_least=1)
    prompt_lengths: str | None = setting(
        None, "Percentiles of prompt tokens, like p50=500,p90=2000, in place of one context.", shown_default="none"
    )
    output_lengths: str | None = setting(
        None, "Percentiles of output tokens, like p50=200,p99=800.", shown_default="none"
    )
    request_log: str | None = setting(
        None, "CSV file or JSON lines with the lengths, and perhaps times, of real requests.", shown_default="none"
    )
    arrival_rate: str | None = setting(
        None, "Requests that arrive, like 2/s or 90/min; says how many run at once.", shown_default="the log's"
    )
    cover: float | None = setting(
        None, "Share of the requests that the context must have room for; longer ones are refused.", shown_default="1"
    )
    max_num_batched_tokens: int | None = setting(
        None, "Tokens in one step at most.", shown_default="the engine's", at_least=1
    )
    mamba_cache_mode: Literal["none", "align", "all"] | None = setting(
        None, "How vLLM keeps recurrent states: one a request, or along the prefix.", shown_default="none"
    )
    mamba_ssm_dtype: str | None = setting(None, "Type of recurrent states.", shown_default="the model's")
    speculative_tokens: int = setting(0, "Draft tokens of speculative decoding.", at_least=0)
    prediction_layers: int = setting(0, "Layers of the prediction head that join the cache.", at_least=0)
    prompt_tokens: int | None = setting(
        None, "Tokens of a prompt, for the time to the first token.", shown_default="half the context", at_least=1
    )

    def __post_init__(self) -> None:
        if self.memory_utilization is not None and not 0 < self.memory_utilization <= 1:
            raise ConfigError(f"memory_utilization must be above 0 and at most 1, got {self.memory_utilization}")
        if self.memory_utilization is not None and self.headroom is not None:
            raise ConfigError("memory_utilization and headroom are two rules for one thing", hint="give one of them")
        if self.headroom is not None and self.headroom > 10:
            raise ConfigError(
                f"headroom must be a share from 0 to 10, got {self.headroom}", hint="25 % is written 0.25"
            )
        if max(self.num_devices, self.expert_parallel) > MOST_DEVICES:
            raise ConfigError(
                f"{self.num_devices:,} devices are more than any plan has", hint=f"at most {MOST_DEVICES:,}"
            )
        if self.measure and (self.engine != "ullage" or self.device is not None or self.memory is not None):
            raise ConfigError(
                "measure looks at this machine, as Ullage's own engine uses it", hint="with --engine ullage"
            )
        if self.cover is not None and not 0 < self.cover <= 1:
            raise ConfigError(f"cover must be above 0 and at most 1, got {self.cover}", hint="99 % is written 0.99")
        if (self.prompt_lengths is None) != (self.output_lengths is None):
            raise ConfigError("prompt_lengths and output_lengths belong together", hint="give both")
        if self.prompt_lengths is not None and self.request_log is not None:
            raise ConfigError("request_log and percentiles both say how long requests are", hint="give one of them")
        if self.prompt_lengths is None and self.request_log is None:
            for name in ("arrival_rate", "cover"):
                if getattr(self, name) is not None:
                    hint = "give prompt_lengths and output_lengths, or request_log"
                    raise ConfigError(f"{name} needs to know how long requests are", hint=hint)
        if self.device is not None and self.memory is not None:
            raise ConfigError("device and memory both say how much memory there is", hint="give one of them")

    @property
    def num_devices_per_copy(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def num_devices(self) -> int:
        return self.num_devices_per_copy * self.data_parallel

    def kv_memory_bytes(self) -> int | None:
        """:raises ConfigError: not a size"""
        return None if self.kv_memory is None else positive_size(self.kv_memory, "kv_memory")


def positive_size(text: str, name: str) -> int:
    """A size in bytes above 0; a part of a byte is dropped.

    :param name: the setting, for the error
    :raises ConfigError: not such a size
    """
    try:
        size = parse_bytes(text, round_down=True)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error.message}", hint=error.hint) from None
    if not size:
        raise ConfigError(f"{name} must be above 0, got {text!r}")
    return size
