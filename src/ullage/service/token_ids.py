"""Token ids that come from outside."""

from __future__ import annotations

from collections.abc import Iterable

from ullage.base.errors import InvalidRequestError
from ullage.service.service import Service


def check_vocabulary(service: Service, token_ids: Iterable[int], param: str) -> None:
    """:raises InvalidRequestError: one isn't a token of the model"""
    vocab_size = service.model.tokenizer.vocab_size
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(f"{param} has a token id that isn't from 0 to {vocab_size - 1}", param=param)
