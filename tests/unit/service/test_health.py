"""What readiness says of each state of the engine."""

from types import SimpleNamespace
from typing import cast

import pytest

from ullage.engine.client import EngineState, EngineStatus
from ullage.service import health
from ullage.service.probe import Fault
from ullage.service.service import Service


def service(
    *,
    waiting: int = 0,
    quiet_seconds: float = 0.0,
    state: EngineState = "ready",
    healthy: bool = True,
    stopping: bool = False,
    fault: Fault | None = None,
    auditor: object = None,
) -> Service:
    status = EngineStatus(
        healthy=healthy and state == "ready",
        detail="what it does",
        num_running=1,
        num_waiting=waiting,
        num_steps=1,
        seconds_since_step=quiet_seconds,
        seconds_quiet=quiet_seconds,
        state=state,
    )
    return cast(
        Service,
        SimpleNamespace(
            started=True,
            stopping=stopping,
            prober=SimpleNamespace(fault_now=lambda: fault, seconds_since_proof=2.34),
            engine=SimpleNamespace(status=lambda: status),
            config=SimpleNamespace(stall_seconds=10.0),
            model=SimpleNamespace(names=("model",)),
            auditor=auditor,
        ),
    )


def test_it_is_ready_while_nobody_waits_and_busy_while_somebody_does() -> None:
    said = [(code, body["status"]) for code, body in map(health.ready, (service(), service(waiting=1)))]
    assert said == [(200, "ready"), (200, "busy")]


def test_it_is_stalled_when_the_engine_gives_no_sign_of_life_and_dead_a_little_later() -> None:
    told = [(health.ready(given), health.live(given)) for given in map(quiet, (6.0, 8.0, 11.0))]
    assert [(ready[1]["status"], live[1]["status"]) for ready, live in told] == [
        ("ready", "live"),
        ("stalled", "live"),
        ("stalled", "failed"),
    ]


def quiet(seconds: float) -> Service:
    return service(quiet_seconds=seconds)


@pytest.mark.parametrize("state", ["starting", "stalled", "failed"])
def test_without_proof_it_is_not_ready_and_says_why(state: EngineState) -> None:
    assert health.ready(service(fault=Fault(state, "so"))) == (503, {**told(state), "reason": "so"})


def told(state: str) -> dict[str, object]:
    return {"status": state, "reason": "what it does", "seconds_since_proof": 2.3}


def test_it_drains_from_the_stop_signal_on() -> None:
    code, body = health.ready(service(stopping=True))
    assert (code, body["status"]) == (503, "draining")


@pytest.mark.parametrize("state", ["stalled", "restarting", "failed"])
def test_an_unhealthy_engine_is_told_by_its_state_and_why(state: EngineState) -> None:
    assert health.ready(service(state=state)) == (503, told(state))


def test_an_engine_that_knows_no_states_has_failed_when_it_is_not_healthy() -> None:
    assert health.ready(service(healthy=False)) == (503, told("failed"))


def test_it_is_not_ready_while_what_it_does_can_not_be_written_down() -> None:
    for refuses, code in ((True, 503), (False, 200)):
        assert health.ready(service(auditor=SimpleNamespace(refuses=refuses)))[0] == code
