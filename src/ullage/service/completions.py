"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from starlette.requests import Request
from starlette.responses import Response

from ullage.access.tenant import tenant_of
from ullage.engine.client import GenerationOutput, TokenLogprob
from ullage.protocol import sse
from ullage.protocol.completions import Completion, CompletionChoice, CompletionRequest
from ullage.protocol.fields import ignored_fields_headers
from ullage.protocol.generation import FinishReason, Usage
from ullage.protocol.json_text import encode_json
from ullage.service.answer import Asked, ChoiceResult, Envelope, answer, has_news
from ullage.service.logprobs import CompletionLogprobsWriter, finite
from ullage.service.request_body import read_fields
from ullage.service.sampling import sampling_params
from ullage.service.service import Service
from ullage.service.token_ids import check_vocabulary

DEFAULT_MAX_TOKENS = 16
"""The API's own. A chat answer may go on to the end of the context."""


async def create_completion(service: Service, request: Request) -> Response:
    fields, ignored = await read_fields(service, request, CompletionRequest)
    service.check_model(fields.model, request.scope)
    num_requests = len(fields.prompt) * fields.num_candidates
    service.check_num_choices(num_requests, "n" if len(fields.prompt) == 1 else "prompt")
    service.engine.check_room(
        tenant=tenant_of(request.scope), num_requests=num_requests, num_prompt_tokens=num_requests
    )
    prompts = await service.off_loop(tokenize_prompts, service, fields)
    asked = Asked(fields, prompts, DEFAULT_MAX_TOKENS, ignored, await service.constraint(fields.asked_constraint))
    writer = CompletionWriter(service, fields, prompts)
    if fields.max_tokens == 0:
        sampling_params(fields.model_copy(update={"max_tokens": 1}), default_max_tokens=1)  # as wrong as elsewhere
        await service.charge(tenant_of(request.scope), sum(map(len, prompts)))
        return echo(asked, writer)
    return await answer(service, request, asked, writer)


def tokenize_prompts(service: Service, fields: CompletionRequest) -> list[tuple[int, ...]]:
    """Texts get the special tokens that the model's file asks for (BOS), and none by what they say; token ids are
    taken as they are.

    :raises ContextLengthError: too long by far
    :raises InvalidRequestError: a prompt that isn't generated from has what is no token
    """
    encode = service.model.tokenizer.encode
    prompts: list[tuple[int, ...]] = []
    for prompt in fields.prompt:
        if isinstance(prompt, str):
            service.text_limit.check([prompt], "prompt")
            prompts.append(tuple(encode(prompt)))
        else:
            service.text_limit.check_num_tokens(len(prompt), "prompt")
            if fields.max_tokens == 0:  # the engine, which checks the others, never sees it
                check_vocabulary(service, prompt, "prompt")
            prompts.append(tuple(prompt))
    return prompts


def echo(asked: Asked, writer: CompletionWriter) -> Response:
    """The prompts as they came: with ``max_tokens`` 0 there is nothing to generate."""
    outputs = [
        GenerationOutput("", (), (), len(prompt), 0, 0, finish_reason="length")
        for prompt in asked.prompts
        for _ in range(asked.fields.num_candidates)
    ]
    results = [ChoiceResult(last=output) for output in outputs]
    headers = ignored_fields_headers(asked.ignored_fields)
    if not asked.fields.stream:
        body = encode_json(writer.whole(results, asked.usage(results)))
        return Response(body, headers=headers, media_type="application/json")
    chunks = [chunk for index in range(len(outputs)) if (chunk := writer.first_chunk(index)) is not None]
    chunks += [writer.last_chunk(index, output) for index, output in enumerate(outputs)]
    if asked.fields.include_usage:
        chunks.append(writer.usage_chunk(asked.usage(results)))
    events = b"".join([*map(sse.encode_event, chunks), sse.DONE])
    return Response(events, headers={**sse.HEADERS, **headers}, media_type=sse.MEDIA_TYPE)


class CompletionWriter:
    """Writes answers and chunks in the shape of the completions API."""

    def __init__(self, service: Service, fields: CompletionRequest, prompts: Sequence[tuple[int, ...]]) -> None:
        self._envelope = Envelope.new("cmpl", fields, service)
        self._fields = fields
        self._prompts = prompts
        self._tokenizer = service.model.tokenizer
        num_choices = len(prompts) * fields.num_choices
        self._logprob_writers = [CompletionLogprobsWriter(self._tokenizer, self._prompt(i)) for i in range(num_choices)]

    def whole(self, results: Sequence[ChoiceResult], usage: Usage) -> Completion:
        best = self._best(results)
        completion = self._completion(*(self._whole_choice(index, result) for index, result in enumerate(best)))
        completion["usage"] = usage
        return completion

    def _best(self, candidates: Sequence[ChoiceResult]) -> list[ChoiceResult]:
        """Of each prompt's the ``n`` with the highest log-probability per token, the best first."""
        num_choices, num_candidates = self._fields.num_choices, self._fields.num_candidates
        if num_candidates == num_choices:
            return list(candidates)
        return [
            result
            for i in range(0, len(candidates), num_candidates)
            for result in sorted(candidates[i : i + num_candidates], key=mean_logprob, reverse=True)[:num_choices]
        ]

    def _whole_choice(self, index: int, result: ChoiceResult) -> CompletionChoice:
        assert result.last is not None
        choice = self._choice(index, self._echoed(index) + result.text, result.logprobs)
        choice["finish_reason"] = cast(FinishReason, result.last.finish_reason)
        choice["stop_reason"] = result.last.stop_reason
        if self._fields.return_token_ids:
            choice["prompt_token_ids"] = list(self._prompt(index))
            choice["token_ids"] = result.token_ids
        return choice

    def first_chunk(self, index: int) -> Completion | None:
        if not (self._fields.echo or self._fields.return_token_ids):
            return None
        choice = self._choice(index, self._echoed(index))
        if self._fields.return_token_ids:
            choice["prompt_token_ids"] = list(self._prompt(index))
            choice["token_ids"] = []
        return self._chunk(choice)

    def text_chunks(self, index: int, output: GenerationOutput) -> list[Completion]:
        if not has_news(self._fields, output):
            return []
        choice = self._choice(index, output.text, output.logprobs)
        if self._fields.return_token_ids:
            choice["token_ids"] = list(output.token_ids)
        return [self._chunk(choice)]

    def last_chunk(self, index: int, output: GenerationOutput) -> Completion:
        choice = self._choice(index, "")
        choice["finish_reason"] = cast(FinishReason, output.finish_reason)
        choice["stop_reason"] = output.stop_reason
        return self._chunk(choice)

    def usage_chunk(self, usage: Usage) -> Completion:
        chunk = self._completion()
        chunk["usage"] = usage
        return chunk

    def _choice(self, index: int, text: str, tokens: Sequence[TokenLogprob] | None = None) -> CompletionChoice:
        with_logprobs = tokens is not None and self._fields.logprobs is not None
        return CompletionChoice(
            index=index,
            text=text,
            logprobs=self._logprob_writers[index].write(tokens or ()) if with_logprobs else None,
            finish_reason=None,
        )

    def _chunk(self, choice: CompletionChoice) -> Completion:
        chunk = self._completion(choice)
        if self._fields.include_usage:
            chunk["usage"] = None
        return chunk

    def _completion(self, *choices: CompletionChoice) -> Completion:
        return Completion(
            id=self._envelope.id,
            object="text_completion",
            created=self._envelope.created,
            model=self._envelope.model,
            system_fingerprint=self._envelope.system_fingerprint,
            choices=list(choices),
        )

    def _prompt(self, index: int) -> tuple[int, ...]:
        return self._prompts[index // self._fields.num_choices]

    def _echoed(self, index: int) -> str:
        """The prompt as it came; token ids as the text they stand for."""
        if not self._fields.echo:
            return ""
        prompt = self._fields.prompt[index // self._fields.num_choices]
        return prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt)


def mean_logprob(result: ChoiceResult) -> float:
    """Per token; that of no token is 0, the surest thing."""
    return sum(finite(token.logprob) for token in result.logprobs) / max(1, len(result.logprobs))
