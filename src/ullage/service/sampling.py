"""From the fields of a request to the engine's sampling parameters."""

from __future__ import annotations

from typing import TypeVar

from ullage.base.errors import InvalidRequestError
from ullage.engine.sampling_params import SamplingParams
from ullage.protocol.generation import GenerationFields
from ullage.service.served_model import ServedModel

Value = TypeVar("Value")


def sampling_params(
    fields: GenerationFields, model: ServedModel, *, default_max_tokens: int, choice: int
) -> SamplingParams:
    """Parameters of one choice. A seed is moved on by ``choice``, or all choices would say the same.

    That token ids are in the vocabulary is checked by the engine.

    :raises InvalidRequestError: a value out of range, by the field's name
    """
    defaults = model.defaults
    top_p = _value(fields.top_p, defaults.top_p)
    top_k = max(0, _value(fields.top_k, defaults.top_k))
    if top_p == 0.0:  # the smallest set that reaches nothing: the most likely token alone
        top_p, top_k = 1.0, 1
    return SamplingParams(
        max_tokens=_value(fields.asked_max_tokens, default_max_tokens),
        temperature=_value(fields.temperature, defaults.temperature),
        top_p=top_p,
        top_k=top_k,
        min_p=_value(fields.min_p, defaults.min_p),
        repetition_penalty=_value(fields.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=_value(fields.presence_penalty, 0.0),
        frequency_penalty=_value(fields.frequency_penalty, 0.0),
        logit_bias=_logit_bias(fields.logit_bias or {}),
        seed=None if fields.seed is None else fields.seed + choice,
        logprobs=fields.asked_num_logprobs,
        stop=tuple(fields.stop or ()),
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        ignore_eos=bool(fields.ignore_eos),
        min_tokens=_value(fields.min_tokens, 0),
    )


def _logit_bias(biases: dict[str, float]) -> dict[int, float]:
    if not all(key.isascii() and key.isdecimal() and len(key) < 10 for key in biases):
        raise InvalidRequestError('logit_bias needs token ids as keys, such as {"42": -100}', param="logit_bias")
    return {int(key): bias for key, bias in biases.items()}


def _value(asked: Value | None, default: Value) -> Value:
    return default if asked is None else asked
