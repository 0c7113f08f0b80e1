"""What the routes share: the replicas, the ways to them, and what is in work."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

from ullage.base.errors import UllageError
from ullage.gateway.config import GatewayConfig
from ullage.gateway.forwarded import ForwardedHeaders, parse_trusted
from ullage.gateway.in_work import InWork
from ullage.gateway.replica import Replica, State
from ullage.gateway.replica_file import ReplicaConfig
from ullage.gateway.rotation import Rotation
from ullage.gateway.upstream import Upstream
from ullage.protocol.body_room import BodyRoom

ReadReplicas = Callable[[], Sequence[ReplicaConfig]]

logger = logging.getLogger(__name__)


class Gateway:
    """Belongs to the event loop.

    :param read_replicas: reads the file anew; may block and raise ``ConfigError``
    """

    def __init__(self, config: GatewayConfig, replicas: Sequence[ReplicaConfig], read_replicas: ReadReplicas) -> None:
        self.config = config
        self.in_work = InWork(config.max_concurrent_requests)
        self.body_room = BodyRoom(config.max_held_body_bytes)
        self.forwarded = ForwardedHeaders(parse_trusted(config.trusted_proxies))
        self.rotation = Rotation(slack=config.sticky_slack)
        self.num_refusals: Counter[str] = Counter()
        """Answers that connections gave by themselves, by error code."""
        self._wanted = replicas
        self._read_replicas = read_replicas
        self._upstreams: dict[Replica, Upstream] = {}
        self._probing: dict[Replica, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._reloading = asyncio.Lock()

    def note_refusal(self, code: str) -> None:
        self.num_refusals[code] += 1

    @property
    def replicas(self) -> tuple[Replica, ...]:
        return self.rotation.replicas

    def upstream(self, replica: Replica) -> Upstream:
        """Also of a replica that has left, until its last request has ended."""
        return self._upstreams[replica]

    async def start(self) -> None:
        """Returns when each replica has been asked once."""
        async with self._reloading:  # a signal may come already
            await self._use(self._wanted)

    async def stop(self) -> None:
        tasks = [*self._probing.values(), *self._leaving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(upstream.close() for upstream in self._upstreams.values()))

    async def reload(self) -> None:
        """Takes over the file of the replicas; where it can't be honoured, everything stays as it was."""
        async with self._reloading:
            try:
                wanted = await asyncio.to_thread(self._read_replicas)
            except UllageError as error:
                logger.error("the reload was refused, the old replicas stay: %s", error)
                return
            await self._use(wanted)
            logger.warning("reloaded: the replicas are %s", ", ".join(replica.name for replica in wanted))

    async def _use(self, wanted: Sequence[ReplicaConfig]) -> None:
        """A replica with the same name and address is the same, and keeps its record. New ones are asked before the old
        ones go, so that there is no moment without any.
        """
        known = {(replica.config.name, replica.config.url): replica for replica in self.replicas}
        used = [known.get((config.name, config.url)) or self._add(config) for config in wanted]
        new = [replica for replica in used if replica not in self._probing]
        await asyncio.gather(*(self._upstreams[replica].probe() for replica in new))
        for replica, config in zip(used, wanted, strict=True):
            replica.config = config
        self.rotation.replace(used)
        self._probing |= {replica: asyncio.create_task(self._probe(replica)) for replica in new}
        for replica in set(known.values()).difference(used):
            self._probing.pop(replica).cancel()
            leaving = asyncio.create_task(self._let_go(replica))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    def _add(self, config: ReplicaConfig) -> Replica:
        replica = Replica(config, self.config, time.monotonic)
        self._upstreams[replica] = Upstream(replica, self.config)
        return replica

    async def _probe(self, replica: Replica) -> None:
        told: State = "up"
        while True:
            if replica.state != told:
                told = replica.state
                logger.warning("the replica %s is %s: %s", replica.config.name, told, replica.reason)
            await asyncio.sleep(self.config.health_interval_seconds)
            await self._upstreams[replica].probe()

    async def _let_go(self, replica: Replica) -> None:
        while replica.num_outstanding:
            await asyncio.sleep(self.config.health_interval_seconds)
        await self._upstreams.pop(replica).close()
