"""The distance of one next-token distribution from another, position by position, and its summary over a text.

All sums are taken in float64: the distances of good kernels are as small as the rounding of float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ullage.base.errors import EngineError
from ullage.kernels.reference import Floats


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Of one engine, fed in one way, over all positions of a text. Divergences are in nats."""

    num_positions: int
    mean_divergence: float
    p99_divergence: float
    """Linear interpolation between the nearest positions, as ``numpy.percentile`` has it."""
    max_divergence: float
    top1_agreement: float
    """Share of positions where both have the same likeliest token, 0..1."""
    perplexity: float
    """Of the text's own next tokens, over the positions that have one."""
    reference_perplexity: float


class DivergenceTally:
    """Takes the logits of one position after another; holds a few numbers of each."""

    def __init__(self) -> None:
        self._divergences: list[float] = []
        self._num_agreeing = 0
        self._losses: list[float] = []
        self._reference_losses: list[float] = []

    def add(self, reference_logits: Floats, logits: Floats, next_token: int | None) -> None:
        """
        :param reference_logits: [vocabulary], as ``logits``
        :param next_token: what follows in the text; None at the end of a piece
        :raises EngineError: not one logit per token of the vocabulary, or one that is no number
        """
        if logits.shape != reference_logits.shape:
            raise EngineError(f"{logits.shape[-1]} logits, but the reference has {reference_logits.shape[-1]}")
        reference, candidate = log_probabilities(reference_logits), log_probabilities(logits)
        self._divergences.append(kl_divergence(reference, candidate))
        self._num_agreeing += int(np.argmax(reference_logits) == np.argmax(logits))
        if next_token is not None:
            self._losses.append(-float(candidate[next_token]))
            self._reference_losses.append(-float(reference[next_token]))

    def summary(self) -> Accuracy:
        """Of at least one position that has a next token."""
        divergences = np.array(self._divergences)
        return Accuracy(
            num_positions=len(divergences),
            mean_divergence=float(divergences.mean()),
            p99_divergence=float(np.percentile(divergences, 99)),
            max_divergence=float(divergences.max()),
            top1_agreement=self._num_agreeing / len(divergences),
            perplexity=math.exp(np.mean(self._losses)),
            reference_perplexity=math.exp(np.mean(self._reference_losses)),
        )


def log_probabilities(logits: Floats) -> NDArray[np.float64]:
    """Natural logarithm of softmax.

    :param logits: [vocabulary]
    :raises EngineError: a logit is NaN or infinite
    """
    if not np.isfinite(logits).all():
        raise EngineError("a logit is NaN or infinite")
    shifted = logits.astype(np.float64) - float(logits.max())
    result: NDArray[np.float64] = shifted - math.log(np.exp(shifted).sum())
    return result


def kl_divergence(reference: NDArray[np.float64], candidate: NDArray[np.float64]) -> float:
    """``sum p (ln p - ln q)`` in nats, p the reference. Source: Kullback and Leibler, 1951.

    :param reference: [vocabulary] natural logarithms of probabilities, as ``candidate``
    """
    return float(np.dot(np.exp(reference), reference - candidate))
