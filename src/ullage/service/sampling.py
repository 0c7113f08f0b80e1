"""From the fields of a request to the engine's sampling parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from ullage.engine.constraint import Constraint
from ullage.engine.sampling_params import SamplingParams
from ullage.protocol.generation import GenerationFields

Value = TypeVar("Value")


def sampling_params(
    fields: GenerationFields,
    *,
    default_max_tokens: int,
    constraint: Constraint | None = None,
    visible_token_ids: tuple[int, ...] = (),
) -> SamplingParams:
    """Parameters of all choices; what a request leaves open has the API's own default.

    That token ids are in the vocabulary is checked by the engine.

    :raises InvalidRequestError: a value out of range, by the field's name
    """
    top_p = _value(fields.top_p, 1.0)
    top_k = max(0, _value(fields.top_k, 0))
    if top_p == 0.0:  # the smallest set that reaches nothing: the most likely token alone
        top_p, top_k = 1.0, 1
    return SamplingParams(
        max_tokens=_value(fields.asked_max_tokens, default_max_tokens),
        temperature=_value(fields.temperature, 1.0),
        top_p=top_p,
        top_k=top_k,
        min_p=_value(fields.min_p, 0.0),
        repetition_penalty=_value(fields.repetition_penalty, 1.0),
        presence_penalty=_value(fields.presence_penalty, 0.0),
        frequency_penalty=_value(fields.frequency_penalty, 0.0),
        logit_bias=fields.logit_bias or {},
        seed=fields.seed,
        logprobs=fields.asked_num_logprobs,
        stop=tuple(fields.stop or ()),
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        ignore_eos=bool(fields.ignore_eos),
        min_tokens=_value(fields.min_tokens, 0),
        constraint=constraint,
        visible_token_ids=visible_token_ids,
    )


def of_choice(sampling: SamplingParams, choice: int) -> SamplingParams:
    """A seed is moved on by ``choice``, or all choices would say the same."""
    return sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + choice)


def _value(asked: Value | None, default: Value) -> Value:
    return default if asked is None else asked
