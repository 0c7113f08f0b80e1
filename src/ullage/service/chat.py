"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from starlette.requests import Request
from starlette.responses import Response

from ullage.base.errors import InvalidRequestError, RequestError
from ullage.engine.client import GenerationOutput, TokenLogprob
from ullage.protocol.chat import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionRequest,
    ChatLogprobs,
    Delta,
)
from ullage.protocol.generation import FinishReason, Usage
from ullage.service.answer import Asked, ChoiceResult, Envelope, answer
from ullage.service.logprobs import chat_logprobs
from ullage.service.request_body import read_fields
from ullage.service.service import Service


async def create_chat_completion(service: Service, request: Request) -> Response:
    fields, ignored = await read_fields(service, request, ChatCompletionRequest)
    service.check_model(fields.model)
    service.check_num_choices(fields.num_choices, "n")
    service.engine.check_room(num_requests=fields.num_choices, num_prompt_tokens=fields.num_choices)
    prompt = await service.off_loop(render_prompt, service, fields)
    asked = Asked(fields, [prompt], default_max_tokens=None, ignored_fields=ignored)
    try:
        return await answer(service, request, asked, ChatWriter(service, fields, prompt))
    except RequestError as error:
        error.param = _names_in_chat(fields).get(error.param, error.param)
        raise


def _names_in_chat(fields: ChatCompletionRequest) -> dict[str | None, str]:
    """The engine's names of what the client knows by others."""
    names: dict[str | None, str] = {"prompt": "messages"}
    return names | {"max_tokens": "max_completion_tokens"} if fields.max_completion_tokens is not None else names


def render_prompt(service: Service, fields: ChatCompletionRequest) -> tuple[int, ...]:
    """:raises InvalidRequestError: the model has no template, or its template refuses these messages
    :raises ContextLengthError: too long by far
    """
    template = service.model.chat_template
    if template is None:
        raise InvalidRequestError(
            "this model has no chat template: it is a base model", param="messages", hint="use /v1/completions"
        )
    service.text_limit.check(sum(message.num_chars for message in fields.messages), "messages")
    messages = [message.for_template() for message in fields.messages]
    return tuple(template.render(messages, add_generation_prompt=fields.add_generation_prompt is not False))


class ChatWriter:
    """Writes answers and chunks in the shape of the chat API."""

    def __init__(self, service: Service, fields: ChatCompletionRequest, prompt: tuple[int, ...]) -> None:
        self._envelope = Envelope.new("chatcmpl", fields, service)
        self._fields = fields
        self._prompt = prompt
        self._tokenizer = service.model.tokenizer

    def whole(self, results: Sequence[ChoiceResult], usage: Usage) -> ChatCompletion:
        completion = ChatCompletion(
            id=self._envelope.id,
            object="chat.completion",
            created=self._envelope.created,
            model=self._envelope.model,
            system_fingerprint=self._envelope.system_fingerprint,
            choices=[self._choice(index, result) for index, result in enumerate(results)],
            usage=usage,
        )
        if self._fields.return_token_ids:
            completion["prompt_token_ids"] = list(self._prompt)
        return completion

    def _choice(self, index: int, result: ChoiceResult) -> ChatChoice:
        assert result.last is not None
        choice = ChatChoice(
            index=index,
            message=AssistantMessage(role="assistant", content=result.text, refusal=None),
            logprobs=self._logprobs(result.logprobs),
            finish_reason=cast(FinishReason, result.last.finish_reason),
            stop_reason=result.last.stop_reason,
        )
        if self._fields.return_token_ids:
            choice["prompt_token_ids"] = list(self._prompt)
            choice["token_ids"] = result.token_ids
        return choice

    def first_chunk(self, index: int) -> ChatChunk:
        choice = self._chunk_choice(index, Delta(role="assistant", content=""))
        chunk = self._chunk(choice)
        if self._fields.return_token_ids:
            chunk["prompt_token_ids"] = choice["prompt_token_ids"] = list(self._prompt)
        return chunk

    def text_chunk(self, index: int, output: GenerationOutput) -> ChatChunk:
        choice = self._chunk_choice(index, Delta(content=output.text))
        choice["logprobs"] = self._logprobs(output.logprobs)
        if self._fields.return_token_ids:
            choice["token_ids"] = list(output.token_ids)
        return self._chunk(choice)

    def last_chunk(self, index: int, output: GenerationOutput) -> ChatChunk:
        choice = self._chunk_choice(index, Delta())
        choice["finish_reason"] = cast(FinishReason, output.finish_reason)
        choice["stop_reason"] = output.stop_reason
        return self._chunk(choice)

    def usage_chunk(self, usage: Usage) -> ChatChunk:
        chunk = self._chunk()
        chunk["usage"] = usage
        return chunk

    def _chunk_choice(self, index: int, delta: Delta) -> ChatChunkChoice:
        return ChatChunkChoice(index=index, delta=delta, logprobs=None, finish_reason=None)

    def _chunk(self, *choices: ChatChunkChoice) -> ChatChunk:
        kind: Literal["chat.completion.chunk"] = "chat.completion.chunk"
        chunk = ChatChunk(
            id=self._envelope.id,
            object=kind,
            created=self._envelope.created,
            model=self._envelope.model,
            system_fingerprint=self._envelope.system_fingerprint,
            choices=list(choices),
        )
        if self._fields.include_usage:
            chunk["usage"] = None
        return chunk

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> ChatLogprobs | None:
        return chat_logprobs(tokens, self._tokenizer) if self._fields.asked_num_logprobs is not None else None
