"""What chat completions and text completions have in common."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator
from typing_extensions import TypedDict

from ullage.base.errors import InvalidRequestError
from ullage.protocol.fields import RequestFields
from ullage.protocol.structured_output import (
    AskedConstraint,
    Choices,
    ResponseFormat,
    Schema,
    StructuredOutputs,
    constraint_of_format,
    constraint_of_structure,
    constraints_by_name,
)

MAX_NUM_CHOICES = 128
MAX_TOKENS_BOUND = 2**31 - 1
MAX_STOP_CHARS = 1024
MAX_LOGIT_BIASES = 1024

FinishReason = Literal["stop", "length", "tool_calls"]
"""All that a finished choice can end with here; anything else is an error, never a made-up reason."""


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


TokenIdText = Annotated[str, Field(pattern="^[0-9]{1,9}$")]


def _as_token_id(key: object) -> int:
    if isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 10:
        return int(key)
    raise InvalidRequestError('logit_bias needs token ids as keys, such as {"42": -100}', param="logit_bias")


StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
Stops = Annotated[list[StopText], Field(max_length=4)]
StopTexts = Annotated[
    list[StopText], BeforeValidator(_as_list, json_schema_input_type=StopText | Stops), Field(max_length=4)
]
"""One text or up to four. An empty list is the same as none: clients send it."""

BiasedTokenId = Annotated[int, BeforeValidator(_as_token_id, json_schema_input_type=TokenIdText)]
"""JSON's keys are texts."""

Bias = Annotated[float, Field(ge=-100, le=100)]
LogitBias = Annotated[
    dict[BiasedTokenId, Bias],
    Field(max_length=MAX_LOGIT_BIASES, json_schema_extra={"additionalProperties": False}),
]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="allow")

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Accepted without effect: padding against traffic analysis, which this server doesn't add."""


class GenerationFields(RequestFields):
    """Fields of both kinds of generation. What is absent, the model's default decides, then the API's."""

    model: str
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS_BOUND)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """0 leaves only the most likely token."""
    n: Annotated[int, Field(ge=1, le=MAX_NUM_CHOICES)] | None = None
    stop: StopTexts | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: (
        Annotated[
            dict[BiasedTokenId, Bias],
            Field(max_length=MAX_LOGIT_BIASES, json_schema_extra={"additionalProperties": False}),
        ]
        | None
    ) = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    # Extensions, named as vLLM names them.
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKENS_BOUND)] | None = None
    """-1 and 0 both mean all tokens."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS_BOUND)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=256)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    return_token_ids: bool | None = None

    request_timeout: Annotated[float, Field(gt=0)] | None = None
    """Seconds that the request may take, its time in the queue included; an extension of this server's own."""

    response_format: ResponseFormat | None = None
    """OpenAI's for chat; an extension for completions, and so are its types ``regex`` and ``grammar``."""
    structured_outputs: StructuredOutputs | None = None
    regex: str | None = None
    grammar: str | None = None
    guided_json: Schema | str | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None

    _asked_constraint: AskedConstraint | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _check_stream_options(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError("stream_options is only allowed with stream: true", param="stream_options")
        return self

    @model_validator(mode="after")
    def _find_constraint(self) -> Self:
        """Once: to write a large schema out takes long."""
        self._asked_constraint = self._constraint_of_fields()
        return self

    @property
    def asked_constraint(self) -> AskedConstraint | None:
        """What the output must match; None: nothing."""
        return self._asked_constraint

    def _constraint_of_fields(self) -> AskedConstraint | None:
        """:raises InvalidRequestError: several fields ask for something"""
        asked = [] if self.response_format is None else [constraint_of_format(self.response_format)]
        if self.structured_outputs is not None:
            asked.append(constraint_of_structure(self.structured_outputs))
        asked += constraints_by_name({"regex": self.regex, "grammar": self.grammar}, "")
        asked += constraints_by_name(
            {
                "json": self.guided_json,
                "regex": self.guided_regex,
                "choice": self.guided_choice,
                "grammar": self.guided_grammar,
            },
            "guided_",
        )
        constraints = [constraint for constraint in asked if constraint is not None]
        if len(constraints) > 1:
            params = " and ".join(constraint.param for constraint in constraints[:2])
            raise InvalidRequestError(f"{params} both constrain the output: send only one", param=constraints[1].param)
        return constraints[0] if constraints else None

    @property
    def num_choices(self) -> int:
        return 1 if self.n is None else self.n

    @property
    def num_candidates(self) -> int:
        """Outputs that are generated for each prompt, of which ``num_choices`` are returned."""
        return self.num_choices

    @property
    def asked_max_tokens(self) -> int | None:
        """How many tokens the client asked for; None where it left that open."""
        return self.max_tokens

    @property
    def asked_num_logprobs(self) -> int | None:
        """None: no log-probabilities. k: those of the chosen token and of the k best."""
        raise NotImplementedError

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def extra_fields(self) -> dict[str, object]:
        nested = (self.stream_options.model_extra or {}) if self.stream_options is not None else {}
        return {**super().extra_fields(), **{f"stream_options.{name}": value for name, value in nested.items()}}


class PromptTokensDetails(TypedDict):
    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    reasoning_tokens: int


class Usage(TypedDict):
    """``total_tokens`` is the sum of the other two. A prompt with several choices is counted once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


def make_usage(*, num_prompt_tokens: int, num_output_tokens: int, num_cached_tokens: int) -> Usage:
    return Usage(
        prompt_tokens=num_prompt_tokens,
        completion_tokens=num_output_tokens,
        total_tokens=num_prompt_tokens + num_output_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=num_cached_tokens),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=0),
    )


class ChoiceExtensions(TypedDict):
    """vLLM's additions to a choice."""

    stop_reason: NotRequired[int | str | None]
    """The stop text or token id that ended the output; in a stream only on the last chunk of a choice."""
    prompt_token_ids: NotRequired[list[int]]
    """With ``return_token_ids``; in a stream only on the first chunk of a choice."""
    token_ids: NotRequired[list[int]]
    """With ``return_token_ids``; in a stream the new ones. A special token that ended the output is among them."""
