"""Messages between the service and its engine process: msgpack of plain values, nothing that could run code.

A dataclass travels as the number of its class in ``CLASSES`` and the values of its fields in their order, an error as
its class's name and its attributes. Both ends are of one version: the parent starts the child from its own files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import msgpack

from ullage.base import errors
from ullage.base.errors import EngineError, UllageError
from ullage.engine.build import EngineOptions
from ullage.engine.client import (
    EngineFigures,
    EngineStatus,
    GenerationOutput,
    GenerationRequest,
    RequestTimes,
    TokenLogprob,
)
from ullage.engine.constraint import Constraint
from ullage.engine.engine_loop import Abort, Event, Stop, Submit
from ullage.engine.request import RequestLimits
from ullage.engine.sampling_params import SamplingParams
from ullage.engine.scheduler import SchedulerConfig
from ullage.plan.block_demand import BlockDemand
from ullage.plan.ledger import AccountSnapshot, LedgerSnapshot
from ullage.plan.memory import Account, Plan


@dataclass(frozen=True, slots=True)
class Opening:
    """To the child: what to load."""

    model_path: str
    options: EngineOptions


@dataclass(frozen=True, slots=True)
class ServiceLoaded:
    """To the child: what the service itself holds by now, a part of the memory plan."""

    resident_bytes: int


@dataclass(frozen=True, slots=True)
class EngineReady:
    """From the child: loaded, and ready for requests."""

    limits: RequestLimits
    scheduler_config: SchedulerConfig
    with_texts: bool
    """It has a tokenizer."""
    ledger: LedgerSnapshot
    plan: Plan | None
    """None where nothing was planned: a fake."""
    runner_name: str
    warning: str | None


@dataclass(frozen=True, slots=True)
class StepReport:
    """From the child: after each step, and while idle now and then."""

    started: Sequence[int]
    """Keys of requests that left the queue."""
    events: Sequence[Event]
    status: EngineStatus
    kv_bytes: tuple[int, int, int]
    """Reserved, used, cached."""
    figures: EngineFigures | None = None
    """Now and then, and when nothing is left to do."""


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """From the child, its last words."""

    error: UllageError


CLASSES: tuple[type[Any], ...] = (
    GenerationOutput,
    TokenLogprob,
    RequestTimes,
    StepReport,
    EngineStatus,
    GenerationRequest,
    SamplingParams,
    Constraint,
    Submit,
    Abort,
    Stop,
    Opening,
    EngineOptions,
    ServiceLoaded,
    EngineReady,
    RequestLimits,
    SchedulerConfig,
    BlockDemand,
    LedgerSnapshot,
    AccountSnapshot,
    Plan,
    Account,
    EngineFailed,
    EngineFigures,
)
_ERROR_CODE = 126
_LARGE_INT_CODE = 127
"""msgpack's own ints have 64 bits; a number that a client sent may be larger."""


def _values_of(cls: type[Any]) -> Any:
    names = [field.name for field in fields(cls)]
    if len(names) < 2:
        return lambda value: [getattr(value, name) for name in names]
    return attrgetter(*names)


_CODES = {cls: (code, _values_of(cls)) for code, cls in enumerate(CLASSES)}
_ERROR_CLASSES = {
    name: cls for name, cls in vars(errors).items() if isinstance(cls, type) and issubclass(cls, UllageError)
}


def encode(message: object) -> bytes:
    """:raises TypeError: something that isn't made to travel"""
    packed: bytes = msgpack.packb(message, default=_extend, unicode_errors="surrogatepass")
    return packed


def decode(data: bytes) -> Any:
    """:raises EngineError: not a message"""
    try:
        return _unpack(data)
    except (ValueError, TypeError, LookupError, msgpack.UnpackException, UllageError) as error:
        raise EngineError(f"the engine process sent something that is no message: {error}") from error


def _unpack(data: bytes) -> Any:
    return msgpack.unpackb(
        data, use_list=False, strict_map_key=False, ext_hook=_restore, unicode_errors="surrogatepass"
    )


def _extend(value: object) -> object:
    if (known := _CODES.get(type(value))) is not None:
        code, values_of = known
        return msgpack.ExtType(code, encode(values_of(value)))
    if isinstance(value, UllageError):
        return msgpack.ExtType(_ERROR_CODE, encode((_error_name(type(value)), value.__dict__)))
    if isinstance(value, int):
        return msgpack.ExtType(_LARGE_INT_CODE, str(value).encode())
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):  # a class made of it
        return list(value)
    raise TypeError(f"{type(value).__name__} can't be sent to another process")


def _error_name(cls: type[UllageError]) -> str:
    """That of the nearest class that the tree has."""
    return next(base.__name__ for base in cls.__mro__ if base.__name__ in _ERROR_CLASSES)


def _restore(code: int, data: bytes) -> object:
    if code == _LARGE_INT_CODE:
        return int(data)
    value = _unpack(data)
    if code == _ERROR_CODE:
        name, attributes = value
        error = _ERROR_CLASSES[name].__new__(_ERROR_CLASSES[name], attributes["message"])
        error.__dict__.update(attributes)
        return error
    return CLASSES[code](*value)
