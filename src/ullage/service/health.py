"""Health and the ledger: what supervisors, balancers and people ask a running server."""

from __future__ import annotations

from ullage.engine.client import EngineStatus
from ullage.plan.machine import resident_bytes
from ullage.service.service import Service

QUIET_SECONDS = 7.0
"""An engine without a sign of life for so long isn't ready. Its own supervision acts before that."""

Answer = tuple[int, dict[str, object]]
"""HTTP status and JSON body."""


def live(service: Service) -> Answer:
    """503 when only a restart can help: the engine has failed for good, or hangs where nobody starts it again. Idle is
    fine, and so is an engine that is being started again.
    """
    if service.started and not service.stopping:
        status = service.engine.status()
        if not status.healthy and status.state not in ("restarting", "stalled"):
            return 503, {"status": "failed", "reason": status.detail}
        if status.healthy and status.seconds_quiet > service.config.stall_seconds:
            return 503, {"status": "failed", "reason": _quiet(status)}
    return 200, {"status": "live"}


def ready(service: Service) -> Answer:
    """503 whenever a new request would not be served as it should be. ``busy`` is 200: steps end, a new request waits
    its turn.
    """
    state, reason = _state(service)
    body: dict[str, object] = {"status": state, "reason": reason}
    if service.prober is not None and (seconds := service.prober.seconds_since_proof) is not None:
        body["seconds_since_proof"] = round(seconds, 1)
    if state not in ("ready", "busy"):
        return 503, body
    status = service.engine.status()
    return 200, body | {
        "models": list(service.model.names),
        "num_running": status.num_running,
        "num_waiting": status.num_waiting,
    }


def _state(service: Service) -> tuple[str, str]:
    """(state, why)"""
    if service.stopping:
        return "draining", "the server is stopping: requests that run may end"
    if not service.started:
        return "starting", "the engine is starting"
    if service.auditor is not None and service.auditor.refuses:
        return "unready", "the audit log can't be written"
    status = service.engine.status()
    if not status.healthy:
        return "failed" if status.state in ("ready", "stopped") else status.state, status.detail
    if status.seconds_quiet > QUIET_SECONDS:
        return "stalled", _quiet(status)
    if service.prober is not None and (fault := service.prober.fault_now()) is not None:
        return fault.state, fault.reason
    if status.num_waiting:
        return "busy", f"{status.num_waiting} requests wait for their turn"
    return "ready", status.detail


def _quiet(status: EngineStatus) -> str:
    return f"the engine neither ended a step nor used a core for {status.seconds_quiet:.0f} s"


def ledger(service: Service) -> dict[str, object]:
    """All accounts in bytes. ``measured`` are the operating system's own figures: of all processes, and of the engine's
    where it has one of its own."""
    snapshot, status = service.engine.ledger(), service.engine.status()
    engine_bytes = service.engine.resident_bytes()
    return {
        "accounts": {
            name: {"planned_bytes": account.planned_bytes, "allocated_bytes": account.allocated_bytes}
            for name, account in snapshot.accounts.items()
        },
        "kv_pool": {
            "reserved_bytes": snapshot.kv_reserved_bytes,
            "used_bytes": snapshot.kv_used_bytes,
            "cached_bytes": snapshot.kv_cached_bytes,
        },
        "blocks": {
            "total": status.num_blocks,
            "size": status.block_size,
            "free": status.num_free_blocks,
            "promised": status.num_promised_blocks,
        },
        "requests": {
            "running": status.num_running,
            "waiting": status.num_waiting,
            "preemptions": status.num_preemptions,
            "aborts": dict(status.num_aborts),
            "refusals": dict(status.num_refusals),
        },
        "tokens": {
            "prompt": status.num_prompt_tokens,
            "generated": status.num_generated_tokens,
            "prefix_hits": status.num_prefix_hit_tokens,
        },
        "engine": {"state": status.state, "num_restarts": status.num_restarts, "num_steps": status.num_steps},
        "measured": {
            "resident_bytes": resident_bytes() + engine_bytes,
            "engine_process_resident_bytes": engine_bytes,
        },
    }
