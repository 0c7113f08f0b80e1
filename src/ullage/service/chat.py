"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, cast

from starlette.requests import Request
from starlette.responses import Response

from ullage.access.tenant import tenant_of
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
    ChatPromptFields,
    Delta,
)
from ullage.protocol.generation import FinishReason, Usage
from ullage.protocol.structured_output import json_text
from ullage.service.answer import Asked, ChoiceResult, Envelope, answer, has_news
from ullage.service.logprobs import chat_logprobs
from ullage.service.request_body import read_fields
from ullage.service.service import Service
from ullage.service.tool_calls.answer import ChoiceToolCalls
from ullage.service.tool_calls.asked import AskedTools, asked_tools


async def create_chat_completion(service: Service, request: Request) -> Response:
    fields, ignored = await read_fields(service, request, ChatCompletionRequest)
    service.check_model(fields.model, request.scope)
    service.check_num_choices(fields.num_choices, "n")
    service.engine.check_room(
        tenant=tenant_of(request.scope), num_requests=fields.num_choices, num_prompt_tokens=fields.num_choices
    )
    prompt, tools = await service.off_loop(render_prompt, service, fields)
    asked = Asked(
        fields,
        [prompt],
        default_max_tokens=None,
        ignored_fields=ignored,
        constraint=tools.constraint if tools else await service.constraint(fields.asked_constraint),
        visible_token_ids=tools.visible_token_ids if tools else (),
    )
    try:
        return await answer(service, request, asked, ChatWriter(service, fields, prompt, tools))
    except RequestError as error:
        error.param = _names_in_chat(fields).get(error.param, error.param)
        raise


def _names_in_chat(fields: ChatCompletionRequest) -> dict[str | None, str]:
    """The engine's names of what the client knows by others."""
    names: dict[str | None, str] = {"prompt": "messages"}
    return names | {"max_tokens": "max_completion_tokens"} if fields.max_completion_tokens is not None else names


def render_prompt(service: Service, fields: ChatPromptFields) -> tuple[tuple[int, ...], AskedTools | None]:
    """Token ids, and the tools that may be called.

    :raises InvalidRequestError: the model has no template, or its template refuses these messages
    :raises ContextLengthError: too long by far
    """
    template = service.model.chat_template
    if template is None:
        raise InvalidRequestError(
            "this model has no chat template: it is a base model", param="messages", hint="use /v1/completions"
        )
    service.text_limit.check([text for message in fields.messages for text in message.texts], "messages")
    messages: list[Mapping[str, object]] = [message.for_template() for message in fields.messages]
    add_generation_prompt = fields.add_generation_prompt is not False
    tools = asked_tools(fields, template, service.model.tokenizer, service.grammars, service.config.tool_format)
    if tools is None:
        return tuple(template.render(messages, add_generation_prompt=add_generation_prompt)), None
    service.text_limit.check([json_text(tool.for_template()) for tool in tools.tools], "tools")
    prompt = template.render(
        tools.messages(messages), add_generation_prompt=add_generation_prompt, tools=tools.for_template()
    )
    return tuple(prompt), tools


class ChatWriter:
    """Writes answers and chunks in the shape of the chat API."""

    def __init__(
        self, service: Service, fields: ChatCompletionRequest, prompt: tuple[int, ...], tools: AskedTools | None
    ) -> None:
        self._envelope = Envelope.new("chatcmpl", fields, service)
        self._fields = fields
        self._prompt = prompt
        self._tokenizer = service.model.tokenizer
        self._tool_calls = [ChoiceToolCalls(tools) for _ in range(fields.num_choices)] if tools else None

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
        message = AssistantMessage(role="assistant", content=result.text, refusal=None)
        if self._tool_calls is not None:
            self._tool_calls[index].deltas(replace(result.last, text=result.text))
            message = self._tool_calls[index].message()
        choice = ChatChoice(
            index=index,
            message=message,
            logprobs=self._logprobs(result.logprobs),
            finish_reason=self._finish_reason(index, result.last),
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

    def text_chunks(self, index: int, output: GenerationOutput) -> list[ChatChunk]:
        """Log-probabilities and token ids are on the first chunk of an output."""
        news = has_news(self._fields, output)
        deltas = [Delta(content=output.text)] if news else []
        if self._tool_calls is not None:
            deltas = self._tool_calls[index].deltas(output)
            if not deltas and (output.logprobs or self._fields.return_token_ids) and news:
                deltas = [Delta()]
        choices = [self._chunk_choice(index, delta) for delta in deltas]
        for choice in choices[:1]:
            choice["logprobs"] = self._logprobs(output.logprobs)
            if self._fields.return_token_ids:
                choice["token_ids"] = list(output.token_ids)
        return [self._chunk(choice) for choice in choices]

    def last_chunk(self, index: int, output: GenerationOutput) -> ChatChunk:
        choice = self._chunk_choice(index, Delta())
        choice["finish_reason"] = self._finish_reason(index, output)
        choice["stop_reason"] = output.stop_reason
        return self._chunk(choice)

    def _finish_reason(self, index: int, output: GenerationOutput) -> FinishReason:
        reason = cast(FinishReason, output.finish_reason)
        return reason if self._tool_calls is None else self._tool_calls[index].finish_reason(reason)

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
