"""The wide seam: a whole engine, as the service sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ullage.base.errors import UllageError
from ullage.engine.sampling_params import SamplingParams
from ullage.plan.ledger import LedgerSnapshot

FinishReason = Literal["stop", "length", "abort", "error"]
EngineState = Literal["starting", "ready", "stalled", "restarting", "failed", "stopped"]
"""``stalled`` and ``restarting`` pass by themselves; ``failed`` doesn't."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What to generate from. Token ids, never text: tokenizing is the caller's."""

    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    cache_salt: str = ""
    """Requests share cached prefixes only when their salts are equal."""
    streamed: bool = True
    """False: the last output is the only one, and has everything. Waking a reader for each token takes time from the
    step that runs meanwhile."""
    tenant: str = ""
    """Who pays: tenants share the engine fairly, by ``weight``."""
    weight: float = 1.0
    priority: int = 0
    """Class of urgency: a lower number goes first, whoever's it is."""
    timeout_seconds: float | None = None
    """From acceptance to the last output, the time in the queue included; None: no limit."""
    is_probe: bool = False
    """Asked to see whether the engine works: it is in no count and in no cache."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One generated token, its log-probability, and the best ones in its place."""

    token_id: int
    logprob: float
    top_logprobs: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """What a request went through, by the engine's clock: seconds that never go back (``time.monotonic``)."""

    arrived_at: float
    """When it was accepted."""
    started_at: float | None
    """When it first left the queue; None: never."""
    first_token_at: float | None
    finished_at: float
    num_preemptions: int = 0


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """One event of a request. The last one, and only it, has a ``finish_reason``; every accepted request gets one.

    ``text`` may lag behind ``token_ids`` (half a UTF-8 character, or what may become a stop text, is held back); joined
    over all events it is complete. Counts are totals so far.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    """One per entry of ``token_ids`` when asked for, else empty."""
    num_prompt_tokens: int
    num_cached_tokens: int
    """Prompt tokens whose keys and values came from the prefix cache."""
    num_output_tokens: int
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop text or stop token id that ended the output; None at the model's own end of sequence."""
    error: UllageError | None = None
    """Set when ``finish_reason`` is ``error``."""
    times: RequestTimes | None = None
    """On the last event."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What health checks and logs need to know."""

    healthy: bool
    detail: str
    """Why not healthy, else what it is doing."""
    num_running: int
    num_waiting: int
    num_steps: int
    seconds_since_step: float
    """Since the last completed step, or since it began to work (after start, after a time without requests)."""
    num_preemptions: int = 0
    """Times a running request gave up its blocks to others, since start."""
    running_by_priority: Mapping[int, int] = field(default_factory=dict)
    waiting_by_priority: Mapping[int, int] = field(default_factory=dict)
    num_blocks: int = 0
    """Of the KV pool."""
    block_size: int = 0
    """Tokens of one."""
    num_free_blocks: int = 0
    """Those that hold a cached prefix included."""
    num_promised_blocks: int = 0
    """Free, but kept for requests that run."""
    num_prompt_tokens: int = 0
    """Computed since start, again after a preemption too."""
    num_generated_tokens: int = 0
    num_prefix_hit_tokens: int = 0
    num_aborts: Mapping[str, int] = field(default_factory=dict)
    """Requests that ended early since start, by reason: ``client`` (the reader left), ``deadline``, ``shutdown``."""
    num_refusals: Mapping[str, int] = field(default_factory=dict)
    """Requests that were refused for now since start, by the bound that was reached (``AdmissionBound``)."""
    state: EngineState = "ready"
    num_restarts: int = 0
    """Times the engine's process was started anew."""
    num_accepted: int = 0
    """Requests accepted since start; those of ``is_probe`` are in neither count."""
    num_open: int = 0
    """Those of them that await their last output, whether or not the engine has taken them in."""
    seconds_quiet: float = 0.0
    """Since it last gave a sign of life: a message or the end of a step, and while it works, the use of a core."""


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """Totals since the engine began that are too many to be told with every step."""

    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    """Time spent in each kind of operator; empty where the runner doesn't know."""
    token_gap_counts: Sequence[int] = ()
    """Gaps between the tokens of a request, by the bucket of ``token_gaps.GAP_SECONDS`` that each fell in."""
    token_gap_seconds: float = 0.0
    """All of them together."""


OnEnd = Callable[[GenerationOutput], None]
"""Told the last output of a request on the event loop, exactly once, whether or not its reader is still there.
It has its ``times``."""


class OutputStream(Protocol):
    """The outputs of one request, for one reader: an iterator that can be left. Any async generator is one."""

    def __aiter__(self) -> AsyncIterator[GenerationOutput]: ...

    async def __anext__(self) -> GenerationOutput: ...

    async def aclose(self) -> None:
        """Leaves early: aborts the request. Idempotent, and harmless after the end."""
        ...


class EngineClient(ABC):
    """A whole engine: accepts requests, answers each with a stream of outputs.

    Bound to the event loop that called ``start``.
    """

    max_model_len: int
    """Prompt + output tokens of one request at most."""
    max_request_tokens: int
    """The same by what can run: ``max_model_len``, or fewer where the whole KV pool holds fewer."""
    max_requests: int
    """Requests it takes at one time, running and waiting: more at once can never be accepted together."""

    @abstractmethod
    async def start(self) -> None:
        """Returns when requests can be served."""

    @abstractmethod
    async def stop(self) -> None:
        """Ends what still runs with a final ``abort`` event, then frees everything. Idempotent. Returns in any case:
        a step that hangs is left behind, with the memory it uses.
        """

    @abstractmethod
    def submit(self, request: GenerationRequest, on_end: OnEnd | None = None) -> OutputStream:
        """Accepts or refuses at once; the iterator then gives the outputs.

        Leaving the iterator early (``aclose``, cancellation) aborts the request: its blocks are free within one step.

        :raises RequestError: can never be served (context, pool) or can't now (queue full); nothing was accepted
        :raises EngineError: the engine isn't running
        """

    def check_room(self, *, tenant: str = "", num_requests: int = 1, num_prompt_tokens: int = 0) -> None:  # noqa: B027
        """Whether there is room to wait for so much, before any work is done for it; ``submit`` decides.

        :param num_prompt_tokens: so many at least, of all of them
        :raises QueueFullError: there is none
        """

    @abstractmethod
    def ledger(self) -> LedgerSnapshot: ...

    def resident_bytes(self) -> int:
        """Physical memory of a process of the engine's own; 0 when it is in this one."""
        return 0

    @abstractmethod
    def status(self) -> EngineStatus: ...

    def figures(self) -> EngineFigures:
        """As of a second ago at most."""
        return EngineFigures()
