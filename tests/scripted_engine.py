"""A whole engine that says what a test wrote down, and a tokenizer and a template small enough to work out by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ullage.base.errors import UllageError
from ullage.engine.client import (
    EngineClient,
    EngineStatus,
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    OnEnd,
    TokenLogprob,
)
from ullage.engine.output import nothing_yet
from ullage.plan.ledger import LedgerSnapshot, MemoryLedger
from ullage.service.served_model import ServedModel

EOS = 256


class ByteTokenizer:
    """A token is a byte; 256 ends the output."""

    vocab_size = 257
    eos_token_ids = (EOS,)
    strip_leading_space = False
    add_bos = False
    bos_token_id = None
    control_tokens: Mapping[str, int] = MappingProxyType({"<eos>": EOS})

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        names = {} if skip_special_tokens else {EOS: b"<eos>"}
        return b"".join(names.get(i, self.token_bytes(i)) for i in token_ids).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < EOS else b""

    def token_text(self, token_id: int) -> str:
        return "<eos>" if token_id == EOS else self.token_bytes(token_id).decode(errors="replace")

    def is_control(self, token_id: int) -> bool:
        return token_id == EOS


class LineTemplate:
    """``role: content`` in a line each, the names of tools before them.

    :param source: by its marks the form of tool calls is known
    """

    def __init__(self, *, takes_tools: bool = True, source: str = "<tool_call>") -> None:
        self.takes_tools = takes_tools
        self.source = source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        lines = [f"tool {tool['function']['name']}\n" for tool in tools or ()]
        for message in messages:
            content = message.get("content") or ()
            text = content if isinstance(content, str) else "".join(part["text"] for part in content)
            lines.append(f"{message['role']}: {text}\n")
        return list("".join([*lines, "assistant:" if add_generation_prompt else ""]).encode())


def outputs_for(
    request: GenerationRequest, pieces: Sequence[str], finish_reason: FinishReason = "stop"
) -> list[GenerationOutput]:
    """One output per piece, whose tokens are its bytes; the last one has the finish reason."""
    outputs: list[GenerationOutput] = []
    num_output_tokens = 0
    for i, piece in enumerate(pieces):
        token_ids = tuple(piece.encode())
        num_output_tokens += len(token_ids)
        num_logprobs = request.sampling.logprobs
        logprobs = () if num_logprobs is None else tuple(_logprob(token_id, num_logprobs) for token_id in token_ids)
        outputs.append(
            GenerationOutput(
                text=piece,
                token_ids=token_ids,
                logprobs=logprobs,
                num_prompt_tokens=len(request.prompt_token_ids),
                num_cached_tokens=2,
                num_output_tokens=num_output_tokens,
                finish_reason=finish_reason if i == len(pieces) - 1 else None,
            )
        )
    return outputs


def _logprob(token_id: int, num_top: int) -> TokenLogprob:
    return TokenLogprob(token_id, -0.5, tuple(((token_id + i) % EOS, -0.5 - i) for i in range(num_top)))


class ScriptedEngine(EngineClient):
    """Answers each request with ``script(request)``; remembers what it was asked and what was aborted."""

    def __init__(self, script: Callable[[GenerationRequest], Sequence[GenerationOutput]] | None = None) -> None:
        self.max_model_len = self.max_request_tokens = 100
        self.max_requests = 128
        self.script = script or (lambda request: outputs_for(request, ["Hel", "lo"]))
        self.requests: list[GenerationRequest] = []
        self.num_open = 0
        """Accepted, and neither finished nor aborted."""
        self.refusals: dict[int, UllageError] = {}
        """By number of the request: raised instead of accepting it."""
        self.pause_after: int | None = None
        """So many outputs of each request, then none until ``let_go`` or ``stop``."""
        self.healthy = True
        self.num_stuck = 0
        self.seconds_quiet = 0.0
        """When it works."""
        self.stopped = asyncio.Event()
        self._resumed = asyncio.Event()

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        self.stopped.set()
        self._resumed.set()

    def let_go(self) -> None:
        """Paused requests go on to their end."""
        self._resumed.set()

    async def paused(self) -> None:
        await self._resumed.wait()

    def submit(self, request: GenerationRequest, on_end: OnEnd | None = None) -> ScriptedStream:
        if (error := self.refusals.get(len(self.requests))) is not None:
            raise error
        self.requests.append(request)
        return ScriptedStream(self, request, on_end)

    def ledger(self) -> LedgerSnapshot:
        return MemoryLedger({"weights": 10, "kv_pool": 100}).snapshot()

    def status(self) -> EngineStatus:
        num_running = self.num_open + self.num_stuck
        seconds_quiet = self.seconds_quiet if num_running else 0.0
        return EngineStatus(self.healthy, "as scripted", num_running, 0, 7, 0.0, seconds_quiet=seconds_quiet)


class ScriptedStream:
    """The outputs of one request. A class, because leaving a generator that never ran can't be noticed."""

    def __init__(self, engine: ScriptedEngine, request: GenerationRequest, on_end: OnEnd | None) -> None:
        self._engine = engine
        self._on_end = on_end
        self._latest = nothing_yet(request)
        self._outputs = self._generate(engine.script(request))
        self._open = True
        engine.num_open += 1

    def __aiter__(self) -> ScriptedStream:
        return self

    async def __anext__(self) -> GenerationOutput:
        output = self._latest = await anext(self._outputs)
        if output.finish_reason is not None:
            self._end(output)
        return output

    async def aclose(self) -> None:
        self._end(replace(self._latest, text="", token_ids=(), logprobs=(), finish_reason="abort"))

    def _end(self, last: GenerationOutput) -> None:
        if self._open:
            self._open = False
            self._engine.num_open -= 1
            if self._on_end is not None:
                self._on_end(last)

    async def _generate(self, outputs: Sequence[GenerationOutput]) -> AsyncGenerator[GenerationOutput]:
        for i, output in enumerate(outputs):
            if i == self._engine.pause_after:
                await self._engine.paused()
                if self._engine.stopped.is_set():
                    yield GenerationOutput("", (), (), output.num_prompt_tokens, 0, 0, finish_reason="abort")
                    return
            yield output
            for _ in range(4):  # what comes in one turn of the loop is given out as one: let its reader have this first
                await asyncio.sleep(0)


def scripted_model(*, chat: bool = True, template: LineTemplate | None = None) -> ServedModel:
    return ServedModel(
        names=("org/tiny", "tiny"),
        created=1234567890,
        tokenizer=ByteTokenizer(),
        chat_template=(template or LineTemplate()) if chat else None,
    )
