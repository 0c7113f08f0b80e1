"""``/v1/completions``: the request as pydantic checks it, the answers as typed dictionaries."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, Self, TypedDict, TypeGuard

from pydantic import Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from ullage.base.errors import InvalidRequestError
from ullage.protocol.generation import MAX_NUM_CHOICES, ChoiceExtensions, FinishReason, GenerationFields, Usage

Prompt = str | list[int]


def _as_prompts(value: object) -> list[Prompt]:
    """A text, token ids, or a list of either, as a list of prompts."""
    if _is_prompt(value):
        return [value]
    if isinstance(value, list) and value and all(_is_prompt(item) for item in value):
        return value
    raise PydanticCustomError(
        "prompt", "must be a text, a list of texts, a list of token ids, or a list of lists of token ids, and not empty"
    )


def _is_prompt(value: object) -> TypeGuard[Prompt]:
    if isinstance(value, list):
        return bool(value) and all(type(item) is int for item in value)
    return isinstance(value, str)


class CompletionRequest(GenerationFields):
    prompt: Annotated[list[Prompt], PlainValidator(_as_prompts)]
    best_of: int | None = None
    """Accepted when equal to ``n``: choosing among more outputs than are returned is not supported."""
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: bool | None = None

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if len(self.prompt) * self.num_choices > MAX_NUM_CHOICES:
            raise InvalidRequestError(f"prompts times n must be at most {MAX_NUM_CHOICES}", param="prompt")
        if self.best_of is not None and self.best_of != self.num_choices:
            raise InvalidRequestError("best_of is only supported when it equals n", param="best_of")
        if (self.model_extra or {}).get("tools"):
            raise InvalidRequestError("tools belong to chat completions", param="tools")
        if self.echo and self.logprobs is not None:
            raise InvalidRequestError(
                "echo with logprobs is not supported: the prompt's log-probabilities aren't computed", param="echo"
            )
        return self

    @property
    def asked_num_logprobs(self) -> int | None:
        return self.logprobs


class CompletionLogprobs(TypedDict):
    """Four lists with one entry per token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    """The best tokens and the chosen one."""
    text_offset: list[int]
    """Where the token begins, in characters of the choice's text."""


class CompletionChoice(ChoiceExtensions):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    """In a stream null on all chunks but the last of a choice."""


class Completion(TypedDict):
    """A whole answer, or one chunk of a stream: both have the same shape."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: NotRequired[Usage | None]
    """Always in a whole answer. In a stream only with ``include_usage``: null on all chunks but the last."""
