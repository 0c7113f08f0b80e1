"""From tokens to text: what an ``EngineCore`` generates, as the outputs that its users see. ``EmbeddedEngine`` gives
both a thread of their own.

Stop texts are found here, where the text is; the core is then told to end the request, and not one more token is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ullage.base.errors import InvalidRequestError
from ullage.engine.client import FinishReason, GenerationOutput, GenerationRequest, TokenLogprob
from ullage.engine.core import EngineCore
from ullage.engine.detokenizer import Detokenizer
from ullage.engine.grammars import GrammarCompiler, Matcher
from ullage.engine.request import RequestLimits, TokenOutput
from ullage.engine.scheduler import AbortReason
from ullage.models.tokenizer import Tokenizer


@dataclass(slots=True)
class OpenRequest:
    """What is kept of a request until its last output."""

    detokenizer: Detokenizer | None
    latest: GenerationOutput
    """For its counts."""
    held: list[GenerationOutput] | None
    """What waits for the last output; None: nothing waits, the request is streamed."""

    def release(self, output: GenerationOutput) -> GenerationOutput | None:
        """What its reader is given when ``output`` has come; None: nothing yet."""
        if self.held is None:
            return output
        self.held.append(output)
        return None if output.finish_reason is None else merge_outputs(self.held)


class TextEngine:
    """An ``EngineCore`` with text. Belongs to one thread, as the core does::

        engine = TextEngine(core, tokenizer)
        engine.check(request)
        request_id = engine.add_request(request)
        while engine.has_work:
            for request_id, output in engine.step():
                ...

    :param tokenizer: None: all texts stay empty, and stop texts are refused
    """

    def __init__(self, core: EngineCore, tokenizer: Tokenizer | None) -> None:
        self.core = core
        self._tokenizer = tokenizer
        self._grammars = None if tokenizer is None else GrammarCompiler.of(tokenizer, core.limits.vocab_size)
        self._open: dict[int, OpenRequest] = {}

    @property
    def has_work(self) -> bool:
        return self.core.has_work

    @property
    def request_ids(self) -> Sequence[int]:
        """Those that still await their last output."""
        return tuple(self._open)

    def check(self, request: GenerationRequest) -> None:
        """Whether a request could ever be served. May be asked from any thread.

        :raises RequestError: it can't
        """
        check_request(self.core.limits, request, with_texts=self._tokenizer is not None)

    def matcher_for(self, request: GenerationRequest) -> Matcher | None:
        """What ``add_request`` needs of a constrained request; slow, and may be asked from any thread.

        :raises InvalidRequestError: the constraint can't be compiled
        """
        constraint = request.sampling.constraint
        if constraint is None:
            return None
        if self._grammars is None:
            raise InvalidRequestError("constrained output needs a tokenizer, and this model was loaded without one")
        return self._grammars.matcher(constraint)

    def add_request(
        self, request: GenerationRequest, arrived_at: float | None = None, matcher: Matcher | None = None
    ) -> int:
        """Takes in a request that passed ``check``.

        :param arrived_at: by the core's clock; None: now
        :param matcher: from ``matcher_for``; made here if it is missing
        :return: the request's id
        """
        request_id = self.core.add_request(
            request.prompt_token_ids,
            request.sampling,
            cache_salt=request.cache_salt,
            tenant=request.tenant,
            weight=request.weight,
            priority=request.priority,
            arrived_at=arrived_at,
            timeout_seconds=request.timeout_seconds,
            is_probe=request.is_probe,
            matcher=self.matcher_for(request) if matcher is None else matcher,
        )
        held: list[GenerationOutput] | None = None if request.streamed else []
        self._open[request_id] = OpenRequest(self._detokenizer_for(request), nothing_yet(request), held)
        return request_id

    def step(self) -> list[tuple[int, GenerationOutput]]:
        """Runs one step of the core; needs ``has_work``.

        :return: (request id, output) for each request that has something for its reader
        """
        outputs = [(token.request_id, self._take_in(token)) for token in self.core.step()]
        return [(request_id, output) for request_id, output in outputs if output is not None]

    def abort(self, request_id: int, reason: AbortReason = "client") -> GenerationOutput | None:
        """Ends a request now. Its last output brings the text held back so far; None when it had ended already."""
        times = self.core.abort(request_id, reason)
        if times is None:
            return None
        request = self._open.pop(request_id)
        text = request.detokenizer.finish() if request.detokenizer else ""
        ended = replace(request.latest, text=text, token_ids=(), logprobs=(), finish_reason="abort", times=times)
        return request.release(ended)

    def _detokenizer_for(self, request: GenerationRequest) -> Detokenizer | None:
        if self._tokenizer is None:
            return None
        continues_text = not self._tokenizer.is_control(request.prompt_token_ids[-1])
        return Detokenizer(
            self._tokenizer,
            request.sampling.stop,
            min_tokens=request.sampling.min_tokens,
            continues_text=continues_text,
            visible_token_ids=request.sampling.visible_token_ids,
        )

    def _take_in(self, token: TokenOutput) -> GenerationOutput | None:
        request = self._open[token.request_id]
        text, stop_text = _text_of(token, request.detokenizer)
        finish_reason: FinishReason | None = token.finish_reason
        times = token.times
        if stop_text is not None:
            finish_reason = "stop"
            if times is None:
                times = self.core.stop(token.request_id)
        output = GenerationOutput(
            text=text,
            token_ids=() if token.token_id is None else (token.token_id,),
            logprobs=_logprobs_of(token),
            num_prompt_tokens=token.num_prompt_tokens,
            num_cached_tokens=token.num_cached_tokens,
            num_output_tokens=token.num_output_tokens,
            finish_reason=finish_reason,
            stop_reason=token.stop_reason if stop_text is None else stop_text,
            error=token.error,
            times=times,
        )
        if finish_reason is None:
            request.latest = output
        else:
            del self._open[token.request_id]
        return request.release(output)


def check_request(limits: RequestLimits, request: GenerationRequest, *, with_texts: bool) -> None:
    """:raises RequestError: an engine with these limits, with or without a tokenizer, can never serve it"""
    limits.check(request.prompt_token_ids, request.sampling)
    if request.sampling.stop and not with_texts:
        raise InvalidRequestError(
            "stop texts need a tokenizer, and this model was loaded without one",
            param="stop",
            hint="use stop_token_ids",
        )


def nothing_yet(request: GenerationRequest) -> GenerationOutput:
    """An output before the first one."""
    return GenerationOutput("", (), (), len(request.prompt_token_ids), num_cached_tokens=0, num_output_tokens=0)


def merge_outputs(outputs: Sequence[GenerationOutput]) -> GenerationOutput:
    """Successive outputs of one request as a single one."""
    if len(outputs) == 1:
        return outputs[0]
    return replace(
        outputs[-1],
        text="".join(output.text for output in outputs),
        token_ids=tuple(token_id for output in outputs for token_id in output.token_ids),
        logprobs=tuple(logprob for output in outputs for logprob in output.logprobs),
    )


def _text_of(token: TokenOutput, detokenizer: Detokenizer | None) -> tuple[str, str | None]:
    """(the text a token releases, the stop text that ended it). A token that ends the output by itself adds none."""
    if detokenizer is None:
        return "", None
    if token.token_id is None or token.finish_reason == "stop":
        return detokenizer.finish(), None
    text = detokenizer.push(token.token_id)
    if detokenizer.stop_hit is None and token.finish_reason is not None:
        text += detokenizer.finish()
    return text, detokenizer.stop_hit


def _logprobs_of(token: TokenOutput) -> tuple[TokenLogprob, ...]:
    if token.token_id is None or token.logprob is None:
        return ()
    return (TokenLogprob(token.token_id, token.logprob, token.top_logprobs),)
