"""Who is next: by priority class, then fairly between tenants, then by arrival.

**Classes.** A lower number goes first, always: whoever may use it must be few. Within a class those that were preempted
come before those that never ran, in the order of arrival: they keep their place.

**Tenants** share by a *virtual token counter* (Sheng et al. 2024, "Fairness in Serving Large Language Models",
arXiv:2401.00588, algorithm 2). A tenant is charged for its prompt when the request starts and for each output token
when it comes, divided by the tenant's weight. The tenant with the lowest counter is next, so of two that always have
something waiting neither gets ahead by more than what can run at one time. One that comes back after a time without
waiting requests is lifted to the lowest of those that wait (if nobody waits: to the one that waited last), so that idle
time can't be saved up.

**Forgetting.** A tenant without requests is kept while its counter could still matter: the ``MAX_IDLE_TENANTS`` that
were here last. One that is forgotten begins again as a new one does, at the lowest of those that wait.

Costs: adding and removing are O(1) (O(log n) for a preempted one), looking for the next O(tenants that wait).
"""

from __future__ import annotations

import time
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ullage.engine.request import Request

PROMPT_TOKEN_COST = 1.0
OUTPUT_TOKEN_COST = 2.0
"""In the same unit, as in the paper and as the trade prices them: an output token takes a step of its own."""
MAX_IDLE_TENANTS = 1024
PRESENT_SECONDS = 10.0
"""A tenant counts as present for so long after its last request: one who sends the next when an answer has come is."""


@dataclass(slots=True, eq=False)
class Tenant:
    """One who shares the engine with others."""

    name: str
    weight: float = 1.0
    counter: float = 0.0
    """Service it had, weighted: only differences between tenants mean anything."""
    num_running: int = 0
    num_waiting: int = 0
    """New ones and preempted ones, of all classes."""
    idle_since: float = 0.0
    """When the last of its requests ended."""

    @property
    def is_idle(self) -> bool:
        return self.num_running == self.num_waiting == 0


@dataclass(slots=True)
class PriorityClass:
    """Those that wait with the same priority."""

    preempted: list[Request] = field(default_factory=list)
    new: dict[Tenant, OrderedDict[int, Request]] = field(default_factory=dict)
    """By tenant, in the order of arrival; no tenant without any."""

    def in_order(self) -> Iterator[Request]:
        """The next first. Then the next of each other tenant, then everyone's second ones: who looks further than the
        first looks for one that fits, and each tenant may have it.
        """
        yield from self.preempted
        tenants = sorted(self.new, key=lambda tenant: (tenant.counter, next(iter(self.new[tenant]))))
        rounds = [iter(self.new[tenant].values()) for tenant in tenants]
        while rounds:
            for requests in rounds.copy():
                request = next(requests, None)
                if request is None:
                    rounds.remove(requests)
                else:
                    yield request


class WaitingQueue:
    """Requests that hold no blocks, and the counters of the tenants that they belong to.

    :param clock: in seconds
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._classes: dict[int, PriorityClass] = {}
        self._tenants: dict[str, Tenant] = {}
        """Those with requests, waiting or running."""
        self._idle: OrderedDict[str, Tenant] = OrderedDict()
        """The others, those gone longest first."""
        self._last_to_wait = Tenant("")
        self._num_by_priority: dict[int, int] = {}

    def __len__(self) -> int:
        return sum(self._num_by_priority.copy().values())

    def __iter__(self) -> Iterator[Request]:
        """All of them; who is next comes first. Nothing may change meanwhile."""
        for priority in sorted(self._classes):
            yield from self._classes[priority].in_order()

    def num_by_priority(self) -> dict[int, int]:
        """May be asked from any thread."""
        return self._num_by_priority.copy()

    @property
    def first(self) -> Request | None:
        return next(iter(self), None)

    def share_of(self, tenant: Tenant) -> float:
        """What is due to a tenant with requests: its weight's part of all that are present, from 0 to 1."""
        return tenant.weight / sum(other.weight for other in self._present())

    def lead_of(self, tenant: Tenant) -> float:
        """How much more service a tenant had than the one that had least of the others present; may be negative."""
        return tenant.counter - min((other.counter for other in self._present() if other is not tenant), default=0.0)

    def _present(self) -> Iterator[Tenant]:
        yield from self._tenants.values()
        earliest = self._clock() - PRESENT_SECONDS
        for other in reversed(self._idle.values()):
            if other.idle_since < earliest:
                return
            yield other

    def add(self, request: Request) -> None:
        """Takes in a request that is new."""
        tenant = self._tenant_for(request)
        self._lift(tenant, request.priority)
        self._take_in(request, tenant).new.setdefault(tenant, OrderedDict())[request.request_id] = request

    def put_back(self, request: Request) -> None:
        """Takes in one that ran and was preempted."""
        tenant = self._tenants[request.tenant]
        tenant.num_running -= 1
        insort(self._take_in(request, tenant).preempted, request, key=lambda other: other.request_id)

    def start(self, request: Request) -> None:
        """The request runs from now on. Its prompt is charged the first time."""
        tenant = self._take_out(request)
        tenant.num_running += 1
        if request.num_preemptions == 0:
            tenant.counter += PROMPT_TOKEN_COST * request.num_prompt_tokens / tenant.weight

    def remove(self, request: Request) -> None:
        """The request ended while it waited."""
        self._note_idle(self._take_out(request))

    def end(self, request: Request) -> None:
        """The request ended while it ran."""
        tenant = self._tenants[request.tenant]
        tenant.num_running -= 1
        self._note_idle(tenant)

    def charge_output_token(self, request: Request) -> None:
        tenant = self._tenants[request.tenant]
        tenant.counter += OUTPUT_TOKEN_COST / tenant.weight

    def tenant_of(self, request: Request) -> Tenant:
        return self._tenants[request.tenant]

    def _tenant_for(self, request: Request) -> Tenant:
        name = request.tenant
        if name not in self._tenants:
            self._tenants[name] = self._idle.pop(name) if name in self._idle else Tenant(name)
        self._tenants[name].weight = request.weight
        return self._tenants[name]

    def _lift(self, tenant: Tenant, priority: int) -> None:
        """No credit for the time in which a tenant had nothing waiting."""
        if tenant.num_waiting == 0:
            waiting = self._classes[priority].new if priority in self._classes else {}
            lowest = min((other.counter for other in waiting), default=self._last_to_wait.counter)
            tenant.counter = max(tenant.counter, lowest)

    def _take_in(self, request: Request, tenant: Tenant) -> PriorityClass:
        tenant.num_waiting += 1
        self._num_by_priority[request.priority] = self._num_by_priority.get(request.priority, 0) + 1
        return self._classes.setdefault(request.priority, PriorityClass())

    def _take_out(self, request: Request) -> Tenant:
        tenant = self._tenants[request.tenant]
        requests = self._classes[request.priority]
        if tenant in requests.new and request.request_id in requests.new[tenant]:
            del requests.new[tenant][request.request_id]
            if not requests.new[tenant]:
                del requests.new[tenant]
        else:
            requests.preempted.remove(request)
        if not requests.new and not requests.preempted:
            del self._classes[request.priority]
        self._num_by_priority[request.priority] -= 1
        if not self._num_by_priority[request.priority]:
            del self._num_by_priority[request.priority]
        tenant.num_waiting -= 1
        self._last_to_wait = tenant
        return tenant

    def _note_idle(self, tenant: Tenant) -> None:
        if not tenant.is_idle:
            return
        tenant.idle_since = self._clock()
        self._idle[tenant.name] = self._tenants.pop(tenant.name)
        if len(self._idle) > MAX_IDLE_TENANTS:
            self._idle.popitem(last=False)
