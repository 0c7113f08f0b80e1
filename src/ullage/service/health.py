"""Health and the ledger: what supervisors, balancers and people ask a running server."""

from __future__ import annotations

from ullage.plan.machine import resident_bytes
from ullage.service.service import Service

Answer = tuple[int, dict[str, object]]
"""HTTP status and JSON body."""


def live(service: Service) -> Answer:
    """503 when only a restart can help: the engine is dead, or requests run and no step ends. Idle is fine, and so is
    an engine that is being started again.
    """
    if service.started and not service.stopping and service.engine.status().state not in ("restarting", "stalled"):
        reason = _failure(service)
        if reason is not None:
            return 503, {"status": "failed", "reason": reason}
    return 200, {"status": "live"}


def ready(service: Service) -> Answer:
    """503 whenever a new request would not be served now. ``busy`` is 200: steps end, a new request waits its turn."""
    if service.stopping:
        return 503, {"status": "draining", "reason": "the server is stopping: requests that run may end"}
    if not service.started:
        return 503, {"status": "starting", "reason": "the engine is starting"}
    status = service.engine.status()
    if (reason := _failure(service)) is not None:
        if status.healthy:
            return 503, {"status": "stalled", "reason": reason}
        return 503, {"status": "failed" if status.state in ("ready", "stopped") else status.state, "reason": reason}
    return 200, {
        "status": "busy" if status.num_waiting else "ready",
        "models": list(service.model.names),
        "num_running": status.num_running,
        "num_waiting": status.num_waiting,
    }


def _failure(service: Service) -> str | None:
    status = service.engine.status()
    if not status.healthy:
        return status.detail
    if status.num_running + status.num_waiting > 0 and status.seconds_since_step > service.config.stall_seconds:
        return f"requests are waiting, but no step ended for {status.seconds_since_step:.0f} s"
    return None


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
