"""``/tokenize`` and ``/detokenize``, in vLLM's shapes."""

from __future__ import annotations

from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from ullage.protocol.chat import ChatPromptFields
from ullage.protocol.fields import RequestFields

MAX_TOKEN_ID = 2**31 - 1


class TokenizeTextRequest(RequestFields):
    model: str | None = None
    prompt: str
    add_special_tokens: bool | None = None
    """Whether a token that begins every prompt of the model (BOS) is put first; true unless said otherwise."""
    return_token_strs: bool | None = None


class TokenizeChatRequest(ChatPromptFields):
    """The token ids of the prompt that a chat completion would be generated from."""

    model: str | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(RequestFields):
    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]]


class Tokens(TypedDict):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: NotRequired[list[str]]
    """With ``return_token_strs``: each token as people are shown it."""


class Detokenized(TypedDict):
    prompt: str
