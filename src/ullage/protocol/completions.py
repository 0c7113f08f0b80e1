"""``/v1/completions``: the request as pydantic checks it, the answers as typed dictionaries."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, Self, TypeGuard

from pydantic import Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from ullage.base.errors import InvalidRequestError
from ullage.protocol.generation import (
    MAX_NUM_CHOICES,
    MAX_TOKENS_BOUND,
    ChoiceExtensions,
    FinishReason,
    GenerationFields,
    Usage,
)

MAX_BEST_OF = 20

Prompt = str | list[int]
TokenIds = Annotated[list[int], Field(min_length=1)]
PromptForms = (
    str | Annotated[list[str], Field(min_length=1)] | TokenIds | Annotated[list[TokenIds], Field(min_length=1)]
)


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
    prompt: Annotated[list[Prompt], PlainValidator(_as_prompts, json_schema_input_type=PromptForms)]
    max_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS_BOUND)] | None = None
    """0 only with ``echo``: the prompt comes back as it is."""
    best_of: Annotated[int, Field(ge=1, le=MAX_BEST_OF)] | None = None
    """So many outputs are generated for each prompt; the ``n`` of highest log-probability per token are returned."""
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: bool | None = None

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if len(self.prompt) * self.num_candidates > MAX_NUM_CHOICES:
            raise InvalidRequestError(
                f"prompts times n, or best_of where it is larger, must be at most {MAX_NUM_CHOICES}", param="prompt"
            )
        if self.best_of is not None and self.best_of < self.num_choices:
            raise InvalidRequestError("best_of must be at least n", param="best_of")
        if self.num_candidates > self.num_choices and self.stream:
            raise InvalidRequestError("best_of above n can't be streamed: the best is known last", param="best_of")
        if self.max_tokens == 0 and not self.echo:
            raise InvalidRequestError("max_tokens can only be 0 with echo: true", param="max_tokens")
        if (self.model_extra or {}).get("tools"):
            raise InvalidRequestError("tools belong to chat completions", param="tools")
        if self.echo and self.logprobs is not None:
            raise InvalidRequestError(
                "echo with logprobs is not supported: the prompt's log-probabilities aren't computed", param="echo"
            )
        return self

    @property
    def num_candidates(self) -> int:
        return self.num_choices if self.best_of is None else self.best_of

    @property
    def asked_num_logprobs(self) -> int | None:
        """The best can't be told without."""
        return 0 if self.logprobs is None and self.num_candidates > self.num_choices else self.logprobs


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
