"""Whatever goes in comes out, and nothing else does."""

from __future__ import annotations

import contextlib
import types
import typing
from dataclasses import fields, is_dataclass
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.base import errors
from ullage.base.errors import EngineError, InvalidRequestError, QueueFullError, UllageError
from ullage.engine import wire
from ullage.engine.build import EngineOptions
from ullage.engine.client import EngineStatus, GenerationOutput, GenerationRequest, TokenLogprob
from ullage.engine.constraint import Constraint
from ullage.engine.engine_loop import Abort, Stop, Submit
from ullage.engine.request import RequestLimits
from ullage.engine.sampling_params import SamplingParams
from ullage.engine.scheduler import SchedulerConfig
from ullage.plan.block_demand import BlockDemand
from ullage.plan.ledger import MemoryLedger
from ullage.plan.memory import Account, Plan

TEXTS = st.text(st.characters(codec=None), max_size=20)
"""Half surrogate pairs included: a client's JSON can hold them."""
COUNTS = st.integers(0, 2**63)
FLOATS = st.floats(allow_nan=False)
TOKEN_IDS = st.lists(st.integers(0, 300_000), max_size=20).map(tuple)
ERROR_CLASSES = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, UllageError)]

SAMPLING = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 10**30),
    temperature=st.floats(0, 2),
    top_k=st.integers(0, 10**30),
    logit_bias=st.dictionaries(st.integers(-(2**70), 2**70), st.floats(-100, 100), max_size=5),
    seed=st.none() | st.integers(-(2**63), 2**64 - 1),
    logprobs=st.none() | st.integers(0, 20),
    stop=st.lists(st.text(st.characters(codec=None), min_size=1, max_size=9), max_size=4).map(tuple),
    stop_token_ids=TOKEN_IDS,
    ignore_eos=st.booleans(),
) | st.builds(
    SamplingParams,
    visible_token_ids=TOKEN_IDS,
    constraint=st.builds(Constraint, st.sampled_from(["regex", "grammar"]), TEXTS),
)
REQUESTS = st.builds(
    GenerationRequest,
    TOKEN_IDS,
    SAMPLING,
    cache_salt=TEXTS,
    streamed=st.booleans(),
    tenant=TEXTS,
    weight=FLOATS,
    priority=st.integers(),
    timeout_seconds=st.none() | FLOATS,
)
LOGPROBS = st.builds(TokenLogprob, COUNTS, FLOATS, st.lists(st.tuples(COUNTS, FLOATS), max_size=3).map(tuple))
OUTPUTS = st.builds(
    GenerationOutput,
    TEXTS,
    TOKEN_IDS,
    st.lists(LOGPROBS, max_size=3).map(tuple),
    COUNTS,
    COUNTS,
    COUNTS,
    finish_reason=st.sampled_from([None, "stop", "length", "abort"]),
    stop_reason=st.none() | COUNTS | TEXTS,
)


@given(st.builds(Submit, COUNTS, REQUESTS, FLOATS))
def test_a_request_arrives_as_it_was_sent(submit):
    assert wire.decode(wire.encode(submit)) == submit


@given(st.lists(st.tuples(COUNTS, OUTPUTS), max_size=4).map(tuple))
def test_the_outputs_of_a_step_arrive_as_they_were_sent(events):
    status = EngineStatus(True, "serving", 1, 2, 3, 0.5, num_preemptions=4, state="ready", num_restarts=1)
    report = wire.StepReport((7,), events, status, (3, 2, 1))
    assert wire.decode(wire.encode(report)) == report


LEDGER = MemoryLedger({"weights": 10, "kv_pool": 1 << 40}).snapshot()
DEMAND = BlockDemand(32, (None, 512), 64)
LIMITS = RequestLimits(100, 10, DEMAND, 1000)


@pytest.mark.parametrize(
    "message",
    [
        Abort(7),
        Stop(),
        wire.Opening("/models/a model.gguf", EngineOptions(kv_memory=1 << 33, threads=2, seed=2**70)),
        wire.ServiceLoaded(1 << 30),
        wire.EngineReady(
            RequestLimits(100, 10, DEMAND, 1000), SchedulerConfig(100), True, LEDGER, None, "fake", "slow"
        ),
        Plan((Account("weights", 1 << 40, "2 x 3"),), 1 << 50, 100, 10, 4096, DEMAND),
    ],
    ids=lambda message: type(message).__name__,
)
def test_every_other_message_arrives_as_it_was_sent(message):
    assert wire.decode(wire.encode(message)) == message


@pytest.mark.parametrize("cls", ERROR_CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_keeps_its_class_and_all_that_it_says(cls):
    error = cls.__new__(cls, "too many")
    error.__dict__.update(message="too many", hint="wait", param="n", retry_after_seconds=2.5)
    arrived = wire.decode(wire.encode(wire.EngineFailed(error))).error
    assert type(arrived) is cls
    assert vars(arrived) == vars(error)
    assert str(arrived) == "too many (wait)"
    assert arrived.args == ("too many",)


def test_errors_that_were_raised_arrive_too():
    for error in (
        QueueFullError("full", retry_after_seconds=3.0),
        InvalidRequestError("odd", param="top_k", hint="use another"),
    ):
        arrived = wire.decode(wire.encode(error))
        assert (type(arrived), vars(arrived)) == (type(error), vars(error))


def test_an_error_outside_the_tree_becomes_the_nearest_in_it():
    class DeviceError(EngineError):
        pass

    assert type(wire.decode(wire.encode(DeviceError("off")))) is EngineError


def test_equal_values_in_other_containers_may_travel():
    request = GenerationRequest(
        (1, 2), SamplingParams(logit_bias=types.MappingProxyType({5: 1.0}), stop=["a"], stop_token_ids=[1])
    )
    arrived = wire.decode(wire.encode(request))
    assert (arrived.sampling.logit_bias, arrived.sampling.stop) == ({5: 1.0}, ("a",))


def test_what_is_not_made_to_travel_is_refused():
    with pytest.raises(TypeError, match="object"):
        wire.encode(object())


@given(st.binary(max_size=60))
def test_other_bytes_are_plain_values_or_an_error_of_the_engine(data):
    with contextlib.suppress(EngineError):
        wire.decode(data)


@pytest.mark.parametrize(
    "extension",
    [(99, b"\x90"), (0, b"\x90"), (5, msgpack.packb([0])), (126, msgpack.packb(["Popen", {"message": "x"}]))],
)
def test_an_unknown_class_or_wrong_fields_are_an_error(extension):
    with pytest.raises(EngineError, match="no message"):
        wire.decode(msgpack.packb(msgpack.ExtType(*extension)))


def dataclasses_in(hint: Any) -> set[type]:
    """Those that a value of this type may hold."""
    if isinstance(hint, type) and is_dataclass(hint):
        return {hint}
    return set().union(*map(dataclasses_in, typing.get_args(hint)))


@pytest.mark.parametrize("cls", wire.CLASSES, ids=lambda cls: cls.__name__)
def test_whatever_a_message_holds_can_travel(cls):
    hints = typing.get_type_hints(cls)
    held = set().union(*(dataclasses_in(hints[field.name]) for field in fields(cls)))
    assert held <= set(wire.CLASSES)
