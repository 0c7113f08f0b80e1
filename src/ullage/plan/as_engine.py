"""A named engine's start-up figures for a model: what it would print, from what it was given."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ullage.base.errors import ConfigError
from ullage.plan.architecture import Architecture, architecture_of
from ullage.plan.engines import llamacpp, plain_pools, sglang, vllm
from ullage.plan.engines.plausibility import check_memory
from ullage.plan.engines.request import GIB, EngineReport, EngineRequest, read_request
from ullage.plan.weights.ranks import Parallelism, engine_weight_bytes

ENGINES: Mapping[str, Callable[[Architecture, EngineRequest], EngineReport]] = {
    "vllm": vllm.report,
    "sglang": sglang.report,
    "llamacpp": llamacpp.report,
    "trtllm": plain_pools.report_trtllm,
    "lmdeploy": plain_pools.report_lmdeploy,
}


def as_engine(config: object, case: object) -> dict[str, object]:
    """The ``engine_report``: every figure by name, null where it doesn't apply, and ``implausible`` with reasons.

    :param config: the parsed ``config.json``
    :param case: ``engine_name``, ``engine_version``, ``kv_dtype_name`` and ``given``
    :raises ConfigError: a field that is wrong, an unknown engine, or a kind of cache without known rules
    """
    return dict(engine_report(architecture_of(config), read_request(case)).as_json())


def engine_report(architecture: Architecture, request: EngineRequest) -> EngineReport:
    """:raises ConfigError: an unknown engine, or a kind of cache without known rules"""
    if request.engine_name not in ENGINES:
        raise ConfigError(
            f"engine_name is {request.engine_name!r}, an engine that isn't known",
            hint="known are " + ", ".join(ENGINES),
        )
    result = ENGINES[request.engine_name](architecture, request)
    weights = _weights(architecture, request, result)
    on_device = request.engine_name == "vllm"  # the others often hold other weights there, or only a part of them
    if on_device and weights is not None:
        result.figures["weights_gib_per_rank"] = weights / GIB
    check_memory(result, request, weights if on_device else None)
    return result


def _weights(architecture: Architecture, request: EngineRequest, result: EngineReport) -> int | None:
    """Bytes of a rank's weights; None, with a note, where they can't be derived: the cache can all the same."""
    ranks = Parallelism(request.tensor_parallel_size, request.pipeline_parallel_size, request.expert_parallel_size)
    try:
        return engine_weight_bytes(architecture, ranks)
    except ConfigError as error:
        result.notes.append(f"weights are left out: {error}")
        return None
