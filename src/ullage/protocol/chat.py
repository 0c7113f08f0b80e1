"""``/v1/chat/completions``: the request as pydantic checks it, the answers as typed dictionaries."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from typing_extensions import TypedDict

from ullage.base.errors import InvalidRequestError
from ullage.protocol.fields import RequestFields
from ullage.protocol.generation import MAX_TOKENS_BOUND, ChoiceExtensions, FinishReason, GenerationFields, Usage
from ullage.protocol.tools import MAX_TOOLS, NamedToolChoice, Tool, ToolCallDelta, ToolCallEntry, ToolChoice

MAX_MESSAGES = 4096
MAX_PARTS = 1024
"""In one message: parts of its content, and tool calls. The first wrong one is told, not all of them."""

Role = Literal["developer", "system", "user", "assistant", "tool"]


class TextPart(BaseModel):
    type: Literal["text"]
    text: str


def _as_parts(value: object) -> object:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


PartList = Annotated[list[TextPart], Field(max_length=MAX_PARTS, fail_fast=True)]
Parts = Annotated[PartList, BeforeValidator(_as_parts, json_schema_input_type=str | PartList)]


class FunctionCall(BaseModel):
    name: str
    arguments: str


class ToolCall(BaseModel):
    id: str
    type: Literal["function"]
    function: FunctionCall


class Message(BaseModel):
    """One turn. ``content`` is a text or a list of text parts; both are kept as parts here."""

    model_config = ConfigDict(extra="allow")

    role: Role
    content: Parts | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_PARTS, fail_fast=True)] | None = None
    tool_call_id: str | None = None

    @property
    def texts(self) -> list[str]:
        """All that a template may write out."""
        texts = [part.text for part in self.content or ()]
        for call in self.tool_calls or ():
            texts += [call.function.name, call.function.arguments]
        return texts if self.name is None else [*texts, self.name]

    def for_template(self) -> dict[str, object]:
        """As a chat template takes it; absent keys are absent."""
        return self.model_dump(exclude=set(self.model_extra or ()), exclude_none=True)


class ChatPromptFields(RequestFields):
    """What the prompt of a chat is made of."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    add_generation_prompt: bool | None = None
    """Extension; true unless said otherwise."""
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    """None: ``auto`` where there are tools."""
    parallel_tool_calls: bool | None = None
    """False: one call at most is forced; of calls that the model makes of its own accord the first is kept."""

    @model_validator(mode="after")
    def _check_prompt(self) -> Self:
        for i, message in enumerate(self.messages):
            _check_message(message, f"messages[{i}]")
        names = [tool.function.name for tool in self.tools or ()]
        for i, name in enumerate(names):
            if name in names[:i]:
                raise InvalidRequestError("two tools have this name", param=f"tools[{i}].function.name")
        if isinstance(self.tool_choice, NamedToolChoice) and self.tool_choice.function.name not in names:
            raise InvalidRequestError("tool_choice names a function that isn't in tools", param="tool_choice")
        if self.tool_choice == "required" and not names:
            raise InvalidRequestError("tool_choice is required, but there are no tools", param="tool_choice")
        return self

    @property
    def called_tools(self) -> list[Tool]:
        """Those that the model is told of and may call."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def forced_tools(self) -> list[Tool]:
        """Those of which one must be called; empty: the model may as well answer."""
        if isinstance(self.tool_choice, NamedToolChoice):
            return [tool for tool in self.called_tools if tool.function.name == self.tool_choice.function.name]
        return self.called_tools if self.tool_choice == "required" else []

    def extra_fields(self) -> dict[str, object]:
        in_messages = {
            f"messages[].{name}": value
            for message in self.messages
            for name, value in (message.model_extra or {}).items()
            if value not in (None, [], {})
        }
        return {**super().extra_fields(), **in_messages}


class ChatCompletionRequest(ChatPromptFields, GenerationFields):
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS_BOUND)] | None = None
    """The newer name of ``max_tokens``; both may be given when they agree."""
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise InvalidRequestError("max_tokens and max_completion_tokens differ: send only one", param="max_tokens")
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequestError("top_logprobs is only allowed with logprobs: true", param="top_logprobs")
        if self.called_tools and self.asked_constraint is not None:
            raise InvalidRequestError(
                "output can be constrained or may call tools, not both: send tool_choice none, or no constraint",
                param="tools",
            )
        return self

    @property
    def asked_max_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def asked_num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


def _check_message(message: Message, path: str) -> None:
    if message.content is None and not (message.role == "assistant" and message.tool_calls):
        raise InvalidRequestError(f"{path}.content is missing", param=f"{path}.content")
    if message.tool_calls and message.role != "assistant":
        raise InvalidRequestError("only an assistant message can have tool_calls", param=f"{path}.tool_calls")
    if message.role == "tool" and message.tool_call_id is None:
        raise InvalidRequestError("a tool message needs the tool_call_id it answers", param=f"{path}.tool_call_id")


class TopLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int]
    """The token's own bytes, which may be a part of a character."""


class TokenLogprobEntry(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    content: list[TokenLogprobEntry]


class AssistantMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    """None where there are only tool calls."""
    refusal: None
    tool_calls: NotRequired[list[ToolCallEntry]]


class ChatChoice(ChoiceExtensions):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: NotRequired[list[int]]
    """With ``return_token_ids``: here as vLLM has it, besides in each choice."""


class Delta(TypedDict):
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallDelta]]


class ChatChunkChoice(ChoiceExtensions):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatChunk(TypedDict):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: NotRequired[Usage | None]
    """Only with ``include_usage``: null on all chunks but the last."""
    prompt_token_ids: NotRequired[list[int]]
    """With ``return_token_ids``, on the first chunk of a choice: here as vLLM has it, besides in the choice."""
