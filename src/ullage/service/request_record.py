"""What is known of one HTTP request: the line in the log, the counts and the trace are made of it.

It is complete when the answer has ended and the engine has ended all that was asked for it, in whatever order: a client
may leave before its request has ended, and a request may end long before its answer is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from operator import itemgetter

from ullage.access.client_address import Address
from ullage.access.keys import ApiKey
from ullage.engine.client import GenerationOutput, GenerationRequest
from ullage.protocol.errors import ErrorReply

GENERATION_PATHS = ("/v1/chat/completions", "/v1/completions")
CLIENT_LEFT = 499
"""Told in logs as the status of an answer that never began."""


@dataclass(slots=True, eq=False)
class RequestRecord:
    """Belongs to the event loop."""

    request_id: str
    method: str
    """One of HTTP's own, or that it is another, not what was sent."""
    path: str
    """The app's own writing of it, not what was sent."""
    traceparent: str
    """Header of the W3C's Trace Context; empty: there is none."""
    on_complete: Callable[[RequestRecord], None]
    began_at: float = field(default_factory=time.monotonic)
    ended_at: float = 0.0
    """Of the answer."""
    status: int = CLIENT_LEFT
    error_code: str | None = None
    """Of the answer, or of the event that ended a stream."""
    asked: list[GenerationRequest] = field(default_factory=list)
    """What the engine accepted."""
    ends: list[GenerationOutput] = field(default_factory=list)
    """Last outputs, in the order they came."""
    model: str = ""
    client: Address | None = None
    """Where the request comes from; None: that can't be known."""
    key: ApiKey | None = None
    """That came with it; None: no valid one, or none is asked for."""
    keeps_texts: bool = False
    texts: dict[int, str] = field(default_factory=dict)
    """What was read of each choice's text, where texts are kept."""
    _indexes: list[int] = field(default_factory=list)
    _has_answered: bool = False

    def accepted(self, request: GenerationRequest) -> None:
        self.asked.append(request)

    def ended(self, last: GenerationOutput, index: int) -> None:
        """:param index: of what was accepted"""
        self.ends.append(last)
        self._indexes.append(index)
        self._complete()

    def add_text(self, text: str, index: int) -> None:
        if self.keeps_texts:
            self.texts[index] = self.texts.get(index, "") + text

    def answered(self) -> None:
        self.ended_at, self._has_answered = time.monotonic(), True
        self._complete()

    def _complete(self) -> None:
        if self._has_answered and len(self.ends) == len(self.asked):
            self.on_complete(self)

    @property
    def ends_in_order(self) -> list[GenerationOutput]:
        """Of ``asked``, once complete."""
        return [last for _, last in sorted(zip(self._indexes, self.ends, strict=True), key=itemgetter(0))]

    @property
    def num_prompt_tokens(self) -> int:
        return sum(last.num_prompt_tokens for last in self.ends)

    @property
    def num_cached_tokens(self) -> int:
        return sum(last.num_cached_tokens for last in self.ends)

    @property
    def num_output_tokens(self) -> int:
        return sum(last.num_output_tokens for last in self.ends)

    @property
    def finish_reasons(self) -> tuple[str, ...]:
        """In the order of ``asked``, once complete."""
        return tuple(str(last.finish_reason) for last in self.ends_in_order)


CURRENT: ContextVar[RequestRecord | None] = ContextVar("request_record", default=None)
"""Of the request that the present task serves."""


def note_error(reply: ErrorReply) -> None:
    """An error was told to the client."""
    if (record := CURRENT.get()) is not None:
        record.error_code = reply.body["error"]["code"] or reply.body["error"]["type"]


def note_key(key: ApiKey) -> None:
    """A valid key came with the request, whether or not it opens the address."""
    if (record := CURRENT.get()) is not None:
        record.key = key
