"""What an engine was started with: the inputs of its arithmetic, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any

from ullage.base.config import check_known_names
from ullage.base.errors import ConfigError
from ullage.plan.architecture.fields import MAX_LAYERS, Fields
from ullage.plan.engines.version import Version, parse_version

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One start of an engine. None means not known; each engine says what it then assumes.

    Sizes in bytes are per rank. Names are those of the cases' ``given``, except that GiB became bytes.

    :ivar token_line: what vLLM's "GPU KV cache size" counts: ``blocks`` or ``concurrency`` (from 0.21)
    :ivar mla: how llama.cpp keeps latent attention: ``latent``, ``latent+v`` or ``expanded``
    :ivar kv_unified: whether llama.cpp's slots share one buffer
    """

    engine_name: str
    engine_version: Version | None = None
    kv_dtype: str | None = None
    kv_memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    weights_bytes: int | None = None
    num_gpu_blocks: int | None = None
    capacity_tokens: int | None = None
    max_total_tokens: int | None = None
    swa_tokens: int | None = None
    mamba_slots: int | None = None
    block_size: int | None = None
    page_size: int | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    expert_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    token_line: str | None = None
    mamba_ssm_dtype: str | None = None
    mamba_cache_mode: str | None = None
    num_speculative_tokens: int = 0
    mtp_layers: int = 0
    mla: str | None = None
    mla_disabled: bool = False
    mla_record_bytes: int | None = None
    count_indexer: bool = True
    type_k: str | None = None
    type_v: str | None = None
    n_ctx: int | None = None
    n_seq_max: int = 1
    n_ubatch: int = 512
    rs_seq: int = 0
    kv_unified: bool = True
    swa_full: bool = False

    def at_least(self, *numbers: int, unknown: bool) -> bool:
        """Whether the rules of a version apply; ``unknown``: the answer where the version isn't known."""
        return unknown if self.engine_version is None else self.engine_version.at_least(*numbers)


_SIZES = {"kv_memory_gib": "kv_memory_bytes", "gpu_memory_gib": "gpu_memory_bytes", "weights_gib": "weights_bytes"}
_FLAGS = ("mla_disabled", "count_indexer", "kv_unified", "swa_full")
_CHOICES = {
    "token_line": ("blocks", "concurrency"),
    "mamba_cache_mode": ("none", "align", "all"),
    "mla": ("latent", "latent+v", "expanded"),
}
_TEXTS = ("kv_dtype", "mamba_ssm_dtype", "type_k", "type_v")
_MAY_BE_ZERO = ("num_speculative_tokens", "mtp_layers", "rs_seq")
_COUNTS_OF_LAYERS = ("mtp_layers", "pipeline_parallel_size")
_GIVEN = ("engine_name", "engine_version")


def read_request(case: object) -> EngineRequest:
    """From ``{"engine_name": ..., "engine_version": ..., "kv_dtype_name": ..., "given": {...}}``.

    ``engine_version_bound`` may stand for a version that isn't known. Other names that describe a case are left alone.

    :raises ConfigError: a field that is missing, wrong or not known; the message names it
    """
    outer = Fields.of(case, "the engine's file")
    given = outer.section("given")
    if given is None:
        raise ConfigError("the engine's file has no given", hint="it holds the inputs, like max_model_len")
    names = {f.name for f in fields(EngineRequest)} - set(_SIZES.values()) - set(_GIVEN) | set(_SIZES)
    check_known_names(given.values, names, where="given")
    text = outer.text("engine_version", "engine_version_bound", default="")
    values: dict[str, Any] = {name: value for name in names if (value := _value(given, name)) is not None}
    for name, target in _SIZES.items():
        if name in values:
            values[target] = values.pop(name)
    values.setdefault("kv_dtype", outer.text("kv_dtype_name", default="") or None)
    return EngineRequest(
        engine_name=outer.text("engine_name"), engine_version=parse_version(text) if text else None, **values
    )


def _value(given: Fields, name: str) -> object:
    if name in _SIZES:
        return _bytes(given, name)
    if name in _FLAGS:
        return given.boolean(name, default=False) if given.has(name) else None
    if name in _TEXTS:
        return given.text(name, default="") or None
    if name in _CHOICES:
        choice = given.text(name, default="") or None
        if choice is not None and choice not in _CHOICES[name]:
            raise given.wrong(name, "one of " + ", ".join(_CHOICES[name]))
        return choice
    at_most = MAX_LAYERS if name in _COUNTS_OF_LAYERS else 2**40
    return given.optional_integer(name, at_least=0 if name in _MAY_BE_ZERO else 1, at_most=at_most)


def _bytes(given: Fields, name: str) -> int | None:
    """Whole bytes of a number of GiB; a part of a byte is dropped."""
    if not given.has(name):
        return None
    return int(Fraction(given.number(name, default=1)) * GIB)


@dataclass(slots=True)
class EngineReport:
    """The figures that an engine would print, under the names of the cases; None where a figure doesn't apply.

    :ivar reasons: why the inputs can't be true together; empty: they can
    :ivar notes: what else a reader should know
    """

    figures: dict[str, int | float | None] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> Mapping[str, object]:
        """All names, in one order, with ``implausible`` and the reasons."""
        figures = {name: self.figures.get(name) for name in FIGURES}
        return {**figures, "implausible": bool(self.reasons), "reasons": list(self.reasons), "notes": list(self.notes)}


FIGURES = (
    "capacity_tokens",
    "num_gpu_blocks",
    "block_tokens",
    "max_concurrency",
    "estimated_max_model_len",
    "kv_bytes",
    "kv_gib",
    "kv_gib_needed",
    "kv_mib",
    "kv_bytes_per_token",
    "k_gib",
    "v_gib",
    "k_mib",
    "v_mib",
    "rope_k_mib",
    "latent_mib",
    "swa_cells",
    "swa_tokens",
    "swa_mib",
    "swa_k_mib",
    "swa_v_mib",
    "swa_k_gib",
    "swa_v_gib",
    "indexer_mib",
    "indexer_k_mib",
    "indexer_v_mib",
    "indexer_gib",
    "r_mib",
    "s_mib",
    "conv_gib",
    "ssm_gib",
    "mamba_pad_percent",
    "weights_gib_per_rank",
    "implied_kv_gib",
    "implied_capacity_tokens",
)
"""Every name that a report has, whichever engine it is of."""
