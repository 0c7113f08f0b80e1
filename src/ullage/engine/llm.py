"""The Python door: a model in this process, without a server.

with LLM("smollm2", kv_memory="64MiB") as llm:
    print(llm.chat([{"role": "user", "content": "Hello"}]).text)
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from ullage.base.config import settings_from_arguments
from ullage.base.errors import EngineError, InvalidRequestError
from ullage.engine.build import EngineOptions, build_engine
from ullage.engine.client import (
    EngineStatus,
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    OutputStream,
    TokenLogprob,
)
from ullage.engine.output import merge_outputs
from ullage.engine.sampling_params import SamplingParams
from ullage.models.store import find_model
from ullage.plan.ledger import LedgerSnapshot

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Prompt = str | tuple[int, ...]
"""A text, or token ids in a tuple: a list is always a batch of prompts."""
Message = Mapping[str, Any]
"""``{"role": ..., "content": ...}``."""


@dataclass(frozen=True, slots=True)
class Completion:
    """All that one request gave."""

    text: str
    token_ids: tuple[int, ...]
    prompt_token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    num_cached_tokens: int
    """Prompt tokens whose keys and values came from the prefix cache."""
    finish_reason: FinishReason
    stop_reason: int | str | None


class LLM:
    """A model, ready to generate. Not shared between threads; ``close`` it, or use it as a context manager.

    :param model: a name in the store, a GGUF file or a folder
    :param options: the fields of ``EngineOptions``; sizes may be written like ``"64MiB"``
    :raises ConfigError: an option that doesn't exist or can't be honoured
    :raises ModelFileError: no such model, or one that can't be run
    :raises PlanError: the memory that this takes isn't there
    """

    def __init__(self, model: str | Path, **options: Any) -> None:
        self._built = build_engine(find_model(str(model)), settings_from_arguments(EngineOptions, options))
        if self._built.warning:
            logger.warning("%s", self._built.warning)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ullage-llm", daemon=True)
        self._thread.start()
        self._run(self._built.engine.start())

    @overload
    def generate(self, prompts: Prompt, sampling: SamplingParams | None = None) -> Completion: ...
    @overload
    def generate(self, prompts: list[Prompt], sampling: SamplingParams | None = None) -> list[Completion]: ...

    def generate(
        self, prompts: Prompt | list[Prompt], sampling: SamplingParams | None = None
    ) -> Completion | list[Completion]:
        """Continues a prompt; a list of them runs as one batch and gives a list.

        :raises RequestError: a prompt that can't be served; the whole batch ends
        """
        batch = prompts if isinstance(prompts, list) else [prompts]
        requests = [self._request(prompt, sampling, streamed=False) for prompt in batch]
        completions = self._run(self._complete_all(requests))
        return completions if isinstance(prompts, list) else completions[0]

    def generate_stream(self, prompt: Prompt, sampling: SamplingParams | None = None) -> Generator[GenerationOutput]:
        """Continues one prompt, piece by piece. Leaving the iterator early ends the request."""
        return self._stream(self._request(prompt, sampling, streamed=True))

    def chat(self, messages: Sequence[Message], sampling: SamplingParams | None = None) -> Completion:
        """The answer to a conversation, by the model's own chat template.

        :raises InvalidRequestError: the model has no chat template, or it refuses the messages
        """
        (completion,) = self._run(self._complete_all([self._chat_request(messages, sampling, streamed=False)]))
        return completion

    def chat_stream(
        self, messages: Sequence[Message], sampling: SamplingParams | None = None
    ) -> Generator[GenerationOutput]:
        """The answer to a conversation, piece by piece. Leaving the iterator early ends the request."""
        return self._stream(self._chat_request(messages, sampling, streamed=True))

    @property
    def runner_name(self) -> str:
        """What runs the model, e.g. ``native (avx512, int8 weights, 2 threads)``."""
        return self._built.runner_name

    @property
    def can_chat(self) -> bool:
        """False for a base model, which has no chat template."""
        return self._built.chat_template is not None

    def ledger(self) -> LedgerSnapshot:
        """Planned and allocated bytes, account by account, and what the KV pool holds now."""
        return self._built.engine.ledger()

    def status(self) -> EngineStatus:
        """Whether the engine is well, and what it has to do."""
        return self._built.engine.status()

    def close(self) -> None:
        """Ends what still runs and frees the memory. Idempotent."""
        if not self._loop.is_running():
            return
        self._run(self._built.engine.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _request(self, prompt: Prompt, sampling: SamplingParams | None, *, streamed: bool) -> GenerationRequest:
        if not isinstance(prompt, str | tuple):
            raise InvalidRequestError(
                f"a prompt is a text or a tuple of token ids, not {type(prompt).__name__}",
                param="prompt",
                hint="put token ids in a tuple, like (1, 2, 3); a list is a batch of prompts",
            )
        if not isinstance(sampling, SamplingParams | None):
            raise InvalidRequestError(
                f"sampling is one SamplingParams for all prompts, not {type(sampling).__name__}", param="sampling"
            )
        token_ids = tuple(self._built.tokenizer.encode(prompt)) if isinstance(prompt, str) else prompt
        return GenerationRequest(token_ids, sampling or SamplingParams(), streamed=streamed)

    def _chat_request(
        self, messages: Sequence[Message], sampling: SamplingParams | None, *, streamed: bool
    ) -> GenerationRequest:
        template = self._built.chat_template
        if template is None:
            raise InvalidRequestError(
                "this model has no chat template: it is a base model", param="messages", hint="use generate"
            )
        if isinstance(messages, str) or not messages or not all(isinstance(message, Mapping) for message in messages):
            raise InvalidRequestError(
                "messages must be a list of at least one mapping",
                param="messages",
                hint='like [{"role": "user", "content": "Hello"}]; generate takes plain texts',
            )
        return self._request(tuple(template.render(messages)), sampling, streamed=streamed)

    async def _complete_all(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Keeps the engine full without ever overflowing its queue; the first error ends them all."""
        places = asyncio.Semaphore(self._built.engine.max_requests)

        async def complete(request: GenerationRequest) -> Completion:
            async with places:
                return _completion(request, [output async for output in self._built.engine.submit(request)])

        tasks = [asyncio.ensure_future(complete(request)) for request in requests]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    def _stream(self, request: GenerationRequest) -> Generator[GenerationOutput]:
        return self._pieces(self._run(self._submit(request)))  # refused here, not when the first piece is asked for

    def _pieces(self, outputs: OutputStream) -> Generator[GenerationOutput]:
        try:
            while (output := self._run(_next(outputs))) is not None:
                yield _checked(output)
        finally:
            if self._loop.is_running():  # a stream may outlive its LLM, whose close has ended it
                self._run(outputs.aclose())

    async def _submit(self, request: GenerationRequest) -> OutputStream:
        return self._built.engine.submit(request)

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Waits for ``work`` on the engine's event loop; an interrupt here cancels it there."""
        if self._loop.is_closed():
            work.close()
            raise EngineError("this LLM was closed", hint="build a new one")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()


async def _next(outputs: OutputStream) -> GenerationOutput | None:
    """None after the last one."""
    return await anext(outputs, None)


def _checked(output: GenerationOutput) -> GenerationOutput:
    if output.error is not None:
        raise output.error
    return output


def _completion(request: GenerationRequest, outputs: Sequence[GenerationOutput]) -> Completion:
    whole = _checked(merge_outputs(outputs))
    assert whole.finish_reason is not None, "an engine ended a request without its final event"
    return Completion(
        text=whole.text,
        token_ids=whole.token_ids,
        prompt_token_ids=request.prompt_token_ids,
        logprobs=whole.logprobs,
        num_cached_tokens=whole.num_cached_tokens,
        finish_reason=whole.finish_reason,
        stop_reason=whole.stop_reason,
    )
