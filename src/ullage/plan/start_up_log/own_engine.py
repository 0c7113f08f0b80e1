"""Ullage's own start-up: the memory plan that ``ullage serve`` prints, beside what the same arithmetic says now."""

from __future__ import annotations

from collections.abc import Mapping

from ullage.base.errors import ConfigError
from ullage.kernels.layout import KV_TYPES
from ullage.models.spec import ModelSpec
from ullage.plan.deployment.own_engine import runtime_bytes
from ullage.plan.deployment.planned_model import PlannedModel
from ullage.plan.memory import PlanRequest, make_plan
from ullage.plan.start_up_log.comparison import TOLERATED, Comparison
from ullage.plan.start_up_log.reader import OWN_INPUTS, StartUpLog

ANY_BYTES = 1 << 60
"""Whether the plan fits is not asked here."""
CAUSES: Mapping[str, str] = {
    "weights": "matrices were rounded to another type (weight_type), or the file is another one",
    "kv_pool": "another release lays keys and values out differently",
    "workspace": "another release needs other scratch memory",
    "logits": "the model has another vocabulary",
    "runtime": "planned ahead it is an estimate; a server measures its own interpreter, libraries and tokenizer",
    "num_blocks": "keys and values are kept in another type, or the model is another one",
    "capacity_tokens": "another release shares blocks between layers differently",
}


def compare_own(model: PlannedModel, log: StartUpLog) -> tuple[Comparison, ...]:
    """:raises ConfigError: the log lacks what the arithmetic starts from

    :raises ModelFileError: a model that Ullage can't run
    """
    missing = [name for name in (*OWN_INPUTS, "kv_pool") if name not in {**log.given, **log.actual}]
    if missing:
        raise ConfigError(
            f"the log of ullage serve doesn't say {', '.join(missing)}",
            hint="give all that it prints until it says where it serves; the numpy reference can't be compared",
        )
    spec, stored_types = model.runnable()
    planned = _planned(spec, stored_types, log)
    return tuple(
        Comparison(name, planned[name], actual, _cause(name, planned[name], actual))
        for name, actual in log.actual.items()
    )


def _planned(spec: ModelSpec, stored_types: Mapping[str, str], log: StartUpLog) -> dict[str, int]:
    kv_type = next((known for known in KV_TYPES if known == log.given["kv_type"]), None)
    if kv_type is None:
        raise ConfigError(f"the log has keys and values in {log.given['kv_type']!r}", hint="known: bf16, int8")
    sizes = {name: int(str(log.given[name])) for name in OWN_INPUTS if name != "kv_type"}
    request = PlanRequest(
        runner="native",
        weight_type="file",
        kv_type=kv_type,
        max_model_len=None,
        kv_memory_bytes=int(log.actual["kv_pool"]),
        **sizes,
    )
    plan = make_plan(
        spec, stored_types, request, available_bytes=ANY_BYTES, runtime_bytes=runtime_bytes(spec.vocab_size)
    )
    return {**plan.planned_bytes(), "num_blocks": plan.num_blocks, "capacity_tokens": plan.capacity_tokens}


def _cause(name: str, planned: float, actual: float) -> str:
    return CAUSES[name] if abs(actual - planned) > TOLERATED * planned else ""
