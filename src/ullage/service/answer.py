"""From prompts to an HTTP answer, whole or streamed. Chat and completions differ only in what they write."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from ullage.access.books import rate_limit_headers
from ullage.access.limits import TenantLimits
from ullage.access.tenant import cache_salt, tenant_of
from ullage.base.errors import EngineError
from ullage.engine.client import GenerationOutput, GenerationRequest, TokenLogprob
from ullage.engine.constraint import Constraint
from ullage.protocol import sse
from ullage.protocol.disconnect import run_unless_client_leaves
from ullage.protocol.fields import ignored_fields_headers
from ullage.protocol.generation import GenerationFields, Usage, make_usage
from ullage.protocol.json_text import encode_json
from ullage.service.deadline import timeout_seconds
from ullage.service.event_stream import EventStream
from ullage.service.generation import Generation
from ullage.service.sampling import of_choice, sampling_params
from ullage.service.service import Service

Json = Mapping[str, object]


@dataclass(slots=True)
class ChoiceResult:
    """What a choice has come to so far."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    last: GenerationOutput | None = None

    def add(self, output: GenerationOutput) -> None:
        self.text += output.text
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs
        self.last = output


class AnswerWriter(Protocol):
    """The wire shape of one answer. ``index`` is the choice's."""

    def whole(self, results: Sequence[ChoiceResult], usage: Usage) -> Json: ...

    def first_chunk(self, index: int) -> Json | None:
        """Sent before there is any output; None where the shape needs none."""
        ...

    def text_chunks(self, index: int, output: GenerationOutput) -> Sequence[Json]:
        """What an output brings, its end apart; mostly one chunk."""
        ...

    def last_chunk(self, index: int, output: GenerationOutput) -> Json:
        """The end of a choice; its text has been sent."""
        ...

    def usage_chunk(self, usage: Usage) -> Json: ...


@dataclass(frozen=True, slots=True)
class Envelope:
    """What is the same on an answer and on all of its chunks."""

    id: str
    created: int
    model: str
    system_fingerprint: str

    @classmethod
    def new(cls, prefix: str, fields: GenerationFields, service: Service) -> Envelope:
        return cls(f"{prefix}-{uuid.uuid4().hex}", int(time.time()), fields.model, service.model.system_fingerprint)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that has been understood: ready to be generated from."""

    fields: GenerationFields
    prompts: Sequence[tuple[int, ...]]
    """Token ids. Choice ``i`` belongs to prompt ``i // n``."""
    default_max_tokens: int | None
    """When the client left it open; None: as many as context and KV pool have room for."""
    ignored_fields: tuple[str, ...]
    constraint: Constraint | None = None
    """Checked."""
    visible_token_ids: tuple[int, ...] = ()

    def generation_requests(
        self, service: Service, timeout: float | None, tenant: str, limits: TenantLimits
    ) -> list[GenerationRequest]:
        """One for each choice, prompt by prompt.

        :param timeout: seconds, for each; None: no limit
        :param tenant: empty where no keys are asked for
        :param limits: the tenant's
        :raises InvalidRequestError: a sampling parameter out of range
        """
        requests: list[GenerationRequest] = []
        for prompt in self.prompts:
            default_max_tokens = self._default_max_tokens(prompt, service.engine.max_request_tokens, limits)
            sampling = sampling_params(
                self.fields,
                default_max_tokens=default_max_tokens,
                constraint=self.constraint,
                visible_token_ids=self.visible_token_ids,
            )
            requests += [
                GenerationRequest(
                    prompt,
                    of_choice(sampling, choice),
                    cache_salt=cache_salt(tenant, self.fields.cache_salt or ""),
                    tenant=tenant,
                    weight=limits.weight,
                    priority=limits.priority,
                    streamed=bool(self.fields.stream),
                    timeout_seconds=timeout,
                )
                for choice in range(self.fields.num_candidates)
            ]
        return requests

    def _default_max_tokens(self, prompt: tuple[int, ...], max_request_tokens: int, limits: TenantLimits) -> int:
        """A default never asks for more than fits, here or into what the tenant is given; 1 when nothing does, which is
        then refused with numbers."""
        room = max_request_tokens - len(prompt)
        if limits.most_tokens is not None:
            room_given = limits.most_tokens - sum(len(prompt) for prompt in self.prompts)
            room = min(room, room_given // (len(self.prompts) * self.fields.num_candidates))
        room = max(1, room)
        return room if self.default_max_tokens is None else min(room, self.default_max_tokens)

    def most_tokens(self, requests: Sequence[GenerationRequest]) -> int:
        """That its requests can use together, counted as ``usage`` does."""
        return sum(map(len, self.prompts)) + sum(request.sampling.max_tokens for request in requests)

    def tokens_used(self, lasts: Sequence[GenerationOutput]) -> int:
        """What it costs, however it ended: a prompt once a choice of it has begun to run, and all that was generated.
        What the engine's own failure took away costs nothing.

        :param lasts: the last output of each choice
        """
        n = self.fields.num_candidates
        num_tokens = 0
        for i, prompt in enumerate(self.prompts):
            begun = [last for last in lasts[i * n : (i + 1) * n] if _has_begun(last)]
            num_tokens += sum(last.num_output_tokens for last in begun) + (len(prompt) if begun else 0)
        return num_tokens

    def usage(self, results: Sequence[ChoiceResult]) -> Usage:
        """A prompt counts once, however many choices it has; as cached counts what its first computation found."""
        last = [result.last for result in results if result.last is not None]
        n = self.fields.num_candidates
        return make_usage(
            num_prompt_tokens=sum(len(prompt) for prompt in self.prompts),
            num_output_tokens=sum(output.num_output_tokens for output in last),
            num_cached_tokens=sum(
                min(output.num_cached_tokens for output in last[i : i + n]) for i in range(0, len(last), n)
            ),
        )


def _has_begun(last: GenerationOutput) -> bool:
    """And wasn't taken away by the engine's own failure."""
    return last.times is not None and last.times.started_at is not None and not isinstance(last.error, EngineError)


def has_news(fields: GenerationFields, output: GenerationOutput) -> bool:
    """Held-back text comes later; token ids and log-probabilities that were asked for don't wait for it."""
    return bool(output.text or output.logprobs or (fields.return_token_ids and output.token_ids))


async def answer(service: Service, request: Request, asked: Asked, writer: AnswerWriter) -> Response:
    """Starts the work, then the answer: what the engine refuses is a plain HTTP error also for a stream."""
    timeout = timeout_seconds(request.headers, asked.fields.request_timeout, service.config.request_timeout_seconds)
    tenant = tenant_of(request.scope)
    limits = TenantLimits() if service.allowances is None else service.allowances.of(tenant)
    generation, headers = await _begin(service, asked, asked.generation_requests(service, timeout, tenant, limits))
    headers |= ignored_fields_headers(asked.ignored_fields)
    if asked.fields.stream:
        events = _events(generation, asked, writer, service.config.ping_seconds)
        return EventStream(events, generation.close, headers)
    try:
        results = await run_unless_client_leaves(request.receive, _collect(generation, asked))
    finally:
        await generation.close()
    usage = asked.usage(results)
    if any(result.logprobs for result in results):  # twenty named tokens for each: not on the event loop
        body = await service.off_loop(_whole, writer, results, usage)
    else:
        body = _whole(writer, results, usage)
    return Response(body, headers=headers, media_type="application/json")


async def _begin(
    service: Service, asked: Asked, requests: Sequence[GenerationRequest]
) -> tuple[Generation, dict[str, str]]:
    """Reserves what the tenant may be charged, then submits; what the engine refuses costs nothing.

    :return: what runs, and the headers that tell what is left of the tenant's minute
    :raises RequestError, EngineError: nothing runs, and nothing is reserved
    """
    if service.allowances is None:
        return await Generation.submit(service, requests), {}
    reservation = await service.allowances.reserve(requests[0].tenant, asked.most_tokens(requests))
    try:
        generation = await Generation.submit(
            service, requests, lambda lasts: reservation.settle(asked.tokens_used(lasts))
        )
    except BaseException:
        reservation.release()
        raise
    return generation, rate_limit_headers(reservation.standing)


def _whole(writer: AnswerWriter, results: Sequence[ChoiceResult], usage: Usage) -> bytes:
    return encode_json(writer.whole(results, usage))


def _new_results(asked: Asked) -> list[ChoiceResult]:
    return [ChoiceResult() for _ in range(len(asked.prompts) * asked.fields.num_candidates)]


async def _collect(generation: Generation, asked: Asked) -> list[ChoiceResult]:
    results = _new_results(asked)
    async with aclosing(generation.outputs()) as outputs:
        async for arrived in outputs:
            assert arrived is not None  # only a stream asks for pings
            results[arrived[0]].add(arrived[1])
    return results


async def _events(
    generation: Generation, asked: Asked, writer: AnswerWriter, ping_seconds: float
) -> AsyncGenerator[bytes]:
    results = _new_results(asked)
    for index in range(len(results)):
        if (chunk := writer.first_chunk(index)) is not None:
            yield sse.encode_event(chunk)
    async with aclosing(generation.outputs(ping_seconds)) as outputs:
        async for arrived in outputs:
            if arrived is None:
                yield sse.PING
                continue
            index, output = arrived
            results[index].last = output
            for chunk in writer.text_chunks(index, output):
                yield sse.encode_event(chunk)
            if output.finish_reason is not None:
                yield sse.encode_event(writer.last_chunk(index, output))
    if asked.fields.include_usage:
        yield sse.encode_event(writer.usage_chunk(asked.usage(results)))
    yield sse.DONE
