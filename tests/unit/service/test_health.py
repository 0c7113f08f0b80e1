"""What readiness says of each state of the engine."""

from types import SimpleNamespace
from typing import cast

import pytest

from ullage.engine.client import EngineState, EngineStatus
from ullage.service import health
from ullage.service.service import Service


def service(
    *,
    waiting: int = 0,
    idle_seconds: float = 0.0,
    state: EngineState = "ready",
    healthy: bool = True,
    stopping: bool = False,
) -> Service:
    status = EngineStatus(
        healthy=healthy and state == "ready",
        detail="what it does",
        num_running=1,
        num_waiting=waiting,
        num_steps=1,
        seconds_since_step=idle_seconds,
        state=state,
    )
    return cast(
        Service,
        SimpleNamespace(
            started=True,
            stopping=stopping,
            engine=SimpleNamespace(status=lambda: status),
            config=SimpleNamespace(stall_seconds=60.0),
            model=SimpleNamespace(names=("model",)),
        ),
    )


def test_it_is_ready_while_nobody_waits_and_busy_while_somebody_does() -> None:
    told = [(code, body["status"]) for code, body in map(health.ready, (service(), service(waiting=1)))]
    assert told == [(200, "ready"), (200, "busy")]


def test_it_is_stalled_when_requests_run_and_no_step_ends() -> None:
    code, body = health.ready(service(idle_seconds=61.0))
    assert (code, body["status"]) == (503, "stalled")


def test_it_drains_from_the_stop_signal_on() -> None:
    code, body = health.ready(service(stopping=True))
    assert (code, body["status"]) == (503, "draining")


@pytest.mark.parametrize("state", ["stalled", "restarting", "failed"])
def test_an_unhealthy_engine_is_told_by_its_state_and_why(state: EngineState) -> None:
    assert health.ready(service(state=state)) == (503, {"status": state, "reason": "what it does"})


def test_an_engine_that_knows_no_states_has_failed_when_it_is_not_healthy() -> None:
    assert health.ready(service(healthy=False)) == (503, {"status": "failed", "reason": "what it does"})
