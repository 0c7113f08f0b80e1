"""Who may wait: decided at the door, on the event loop, from counts that are exact there.

A request is *waiting* from the moment it is accepted until the engine says that it started, *in work* until it ended.
The bounds hold once there are as many in work as seats (``max_num_seqs``): before that nobody has to wait for a seat.
Nothing is asked of the engine's thread or process, so a decision takes microseconds, and no two can both take the last
place.

**Retry-After** is how long it took lately until so many requests ended as must end now: the last ``NUM_ENDS`` ends are
remembered, and the time since the last one counts too. So it grows while nothing ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from ullage.base.errors import QueueFullError
from ullage.engine.client import GenerationRequest
from ullage.engine.request import RequestLimits
from ullage.engine.scheduler import SchedulerConfig

AdmissionBound = Literal[
    "max_waiting_requests", "max_waiting_tokens", "max_waiting_requests_per_tenant", "max_waiting_tokens_per_tenant"
]
"""Settings of the queue."""

NUM_ENDS = 64
"""Ends from which the rate is worked out."""
RETRY_SECONDS = (1.0, 60.0)
"""The least and the most that a refused client is told to wait."""


@dataclass(slots=True)
class Waiting:
    """What waits, of all or of one tenant."""

    num_requests: int = 0
    num_tokens: int = 0
    """Of their prompts."""

    def add(self, num_tokens: int, sign: int = 1) -> None:
        self.num_requests += sign
        self.num_tokens += sign * num_tokens


@dataclass(slots=True, eq=False)
class Ticket:
    """One accepted request, until it ended."""

    tenant: str
    num_prompt_tokens: int
    has_started: bool = False
    has_ended: bool = False


@dataclass(slots=True)
class DrainRate:
    """How fast requests end, by the last ``NUM_ENDS``."""

    began_at: float = 0.0
    """When the engine began to work, if nothing has ended since."""
    ends: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_ENDS))

    def seconds_for(self, num_ends: int, now: float) -> float:
        """How long it will take until so many more have ended. The one that is due next counts as ending now."""
        since = self.ends[0] if len(self.ends) == NUM_ENDS else self.began_at
        return num_ends * max(0.0, now - since) / (len(self.ends) + (len(self.ends) < NUM_ENDS))


class Admission:
    """Accepts or refuses. Belongs to the event loop.

    :param config: what may run and wait
    :param limits: how many blocks a request needs, and how many there are
    :param num_refusals: of an engine before this one: counting goes on
    """

    def __init__(
        self,
        config: SchedulerConfig,
        limits: RequestLimits,
        num_refusals: Mapping[AdmissionBound, int] | None = None,
    ) -> None:
        self._config = config
        self._limits = limits
        self._in_work: set[Ticket] = set()
        self._waiting = Waiting()
        self._by_tenant: dict[str, Waiting] = {}
        """Tenants without waiting requests have no entry."""
        self._drain_rate = DrainRate()
        self.num_refusals: dict[AdmissionBound, int] = dict(num_refusals or {})

    @property
    def num_in_work(self) -> int:
        """Accepted and not ended."""
        return len(self._in_work)

    @property
    def num_waiting(self) -> int:
        """Accepted and not known to have started."""
        return self._waiting.num_requests

    def check(self, request: GenerationRequest, now: float, num_free_blocks: int) -> None:
        """Whether a request can ever be served, and be accepted now. However long it is, that is told at once.

        :param now: seconds, of a clock that never goes back; the same at each call
        :param num_free_blocks: as last told by the engine; for the answer of one that is refused
        :raises ContextLengthError, KVCapacityError: never
        :raises QueueFullError: not now
        """
        num_tokens = len(request.prompt_token_ids)
        self._limits.check_length(num_tokens, request.sampling.max_tokens)
        num_blocks = self._limits.demand.num_blocks(num_tokens + request.sampling.max_tokens)
        blocks = {"blocks_needed": num_blocks, "blocks_free": num_free_blocks, "blocks_total": self._limits.num_blocks}
        self.check_room(request.tenant, 1, num_tokens, now, blocks)

    def accept(self, request: GenerationRequest, now: float) -> Ticket:
        """Takes a place for a request that passed ``check`` since anything else happened here."""
        num_tokens = len(request.prompt_token_ids)
        if not self._in_work:
            self._drain_rate = DrainRate(now)
        ticket = Ticket(request.tenant, num_tokens)
        self._in_work.add(ticket)
        self._waiting.add(num_tokens)
        self._by_tenant.setdefault(request.tenant, Waiting()).add(num_tokens)
        return ticket

    def started(self, ticket: Ticket) -> None:
        """The engine says that a request left the queue. Harmless when it did before, or ended."""
        if ticket.has_started or ticket.has_ended:
            return
        ticket.has_started = True
        self._leave_queue(ticket)

    def ended(self, ticket: Ticket, now: float) -> None:
        """A request had its last output. Harmless when it had before."""
        if ticket.has_ended:
            return
        ticket.has_ended = True
        self._in_work.remove(ticket)
        if not ticket.has_started:
            self._leave_queue(ticket)
        self._drain_rate.ends.append(now)

    def check_room(
        self, tenant: str, num_requests: int, num_tokens: int, now: float, details: Mapping[str, int] | None = None
    ) -> None:
        """Whether so much would be accepted now, before it is known exactly what it is.

        :param num_tokens: prompt tokens of all of them, at least
        :param details: what the answer of a refused one says besides
        :raises QueueFullError: it wouldn't
        """
        config, mine, everyone = self._config, self._by_tenant.get(tenant, Waiting()), self._waiting
        num_seats_taken = min(len(self._in_work), config.max_num_seqs)
        num_beyond = len(self._in_work) + num_requests - config.max_requests
        if num_beyond > 0:
            self._refuse("max_waiting_requests", len(self._in_work) - num_seats_taken, num_beyond, now, details)
        if num_seats_taken < config.max_num_seqs:
            return
        bounds: list[tuple[AdmissionBound, int, int]] = [
            ("max_waiting_tokens", everyone.num_tokens, num_tokens),
            ("max_waiting_requests_per_tenant", mine.num_requests, num_requests),
            ("max_waiting_tokens_per_tenant", mine.num_tokens, num_tokens),
        ]
        for bound, present, more in bounds:
            most = getattr(config, bound)
            if most is not None and present > 0 and present + more > most:  # the first may be of any size
                self._refuse(bound, present, 1, now, details)

    def _refuse(
        self, bound: AdmissionBound, present: int, num_ends: int, now: float, details: Mapping[str, int] | None
    ) -> None:
        self.num_refusals[bound] = self.num_refusals.get(bound, 0) + 1
        least, most = RETRY_SECONDS
        limits = {name: getattr(self._config, name) for name in get_args(AdmissionBound)}
        what = "prompt tokens" if "tokens" in bound else "requests"
        whose = " of this tenant" if "tenant" in bound else ""
        raise QueueFullError(
            f"the queue is full: {present} {what}{whose} are waiting, and {limits[bound]} may",
            retry_after_seconds=min(max(least, self._drain_rate.seconds_for(num_ends, now)), most),
            details={
                "bound": bound,
                **(details or {}),
                "requests_in_work": len(self._in_work),
                "waiting_requests": self._waiting.num_requests,
                "waiting_tokens": self._waiting.num_tokens,
                **{limit: value for limit, value in limits.items() if value is not None},
            },
        )

    def _leave_queue(self, ticket: Ticket) -> None:
        self._waiting.add(ticket.num_prompt_tokens, -1)
        mine = self._by_tenant[ticket.tenant]
        mine.add(ticket.num_prompt_tokens, -1)
        if not mine.num_requests:
            del self._by_tenant[ticket.tenant]
