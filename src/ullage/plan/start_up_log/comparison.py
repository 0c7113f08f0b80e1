"""Planned against actual, line by line, with the likely cause of each difference."""

from __future__ import annotations

from dataclasses import dataclass

from ullage.plan.as_engine import as_engine
from ullage.plan.start_up_log.reader import StartUpLog

TOLERATED = 0.02
_NEAR = 0.06


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure.

    :ivar planned: None: it can't be worked out from what the log gives
    :ivar cause: likely, where the two differ by more than 2 %; empty otherwise
    """

    name: str
    planned: float | None
    actual: float
    cause: str

    @property
    def difference(self) -> float | None:
        """Of actual from planned, as a share; None where there is nothing to compare."""
        return None if not self.planned else self.actual / self.planned - 1


def compare(config: object, log: StartUpLog) -> tuple[Comparison, ...]:
    """:raises ConfigError: a model or inputs whose memory can't be worked out"""
    case = {"engine_name": log.engine, "engine_version": log.version, "given": dict(log.given)}
    report = as_engine(config, case)
    lines = []
    for name, actual in log.actual.items():
        planned = report.get(name)
        figure = float(planned) if isinstance(planned, (int, float)) else None
        lines.append(Comparison(name, figure, actual, _cause(name, figure, actual)))
    return tuple(lines)


def _cause(name: str, planned: float | None, actual: float) -> str:
    if planned is None:
        return "the log doesn't give what this depends on"
    if abs(actual - planned) <= max(TOLERATED * abs(planned), 0.005):
        return ""
    ratio = actual / planned if planned else 0.0
    if name == "weights_gib_per_rank":
        return _by_ratio(
            ratio,
            {
                0.5: "weights were loaded in 8 bits, or shared by twice the ranks",
                0.28: "weights were loaded in 4 bits",
                0.25: "weights were loaded in 4 bits, or shared by four times the ranks",
                2.0: "weights were loaded in twice the bits, or shared by half the ranks",
            },
            "a part is loaded that the configuration doesn't describe (a tower, a draft model), or one is left out",
        )
    if name in ("capacity_tokens", "num_gpu_blocks", "max_concurrency"):
        return _by_ratio(
            ratio,
            {
                2.0: "keys and values are kept in half the bits (fp8), or KV heads are shared by twice the ranks",
                0.5: "keys and values are kept in twice the bits, or on half the ranks",
            },
            "another release counts groups or blocks differently; name it with --engine-version",
        )
    return _by_ratio(
        ratio,
        {
            0.53: "the cache is kept in q8_0",
            0.5: "the cache is kept in half the bits, or on one of two devices",
            0.28: "the cache is kept in q4_0",
            2.0: "the cache is kept in twice the bits",
        },
        "another release pads or counts differently, or the log shows one device of several",
    )


def _by_ratio(ratio: float, causes: dict[float, str], otherwise: str) -> str:
    nearest = min(causes, key=lambda known: abs(ratio / known - 1))
    return causes[nearest] if abs(ratio / nearest - 1) <= _NEAR else otherwise
