"""What all routes share: the engine, the model, the limits, and whether new work is still taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ullage.access.allowances import Allowances, open_allowances
from ullage.access.client_address import client_addresses
from ullage.access.config import AccessConfig
from ullage.access.gate import Gate
from ullage.access.keys import KeyStore
from ullage.access.tenant import check_may_use
from ullage.base.config import setting_values
from ullage.base.errors import ConfigError, InvalidRequestError, ModelNotFoundError, QueueFullError, ServerStoppingError
from ullage.base.logs import set_log_level
from ullage.engine.client import EngineClient
from ullage.engine.constraint import Constraint
from ullage.engine.grammars import GrammarCompiler
from ullage.protocol.body_room import BodyRoom
from ullage.protocol.structured_output import AskedConstraint
from ullage.service.audit import AuditCollector, open_auditor
from ullage.service.config import ServiceConfig
from ullage.service.constraints import checked_constraint
from ullage.service.known_answer import KnownQuestion
from ullage.service.metrics import Metrics, ProbeCollector
from ullage.service.probe import Prober
from ullage.service.reload import Apply, Reloadable, Reloads, Settings
from ullage.service.request_record import CURRENT
from ullage.service.served_model import ServedModel
from ullage.service.text_limit import TextLimit
from ullage.service.tracing import make_tracing

Result = TypeVar("Result")

BUSY_RETRY_SECONDS = 1.0


class Service:
    """One engine's service. Lives on one event loop."""

    def __init__(
        self,
        engine: EngineClient,
        model: ServedModel,
        config: ServiceConfig,
        access: AccessConfig | None = None,
        question: KnownQuestion | None = None,
    ) -> None:
        self.engine = engine
        self.model = model
        self.config = config
        self.metrics = Metrics(engine)
        self.prober = _prober(engine, question, config)
        if self.prober is not None:
            self.metrics.add(ProbeCollector(self.prober))
        self.tracing = make_tracing(config, model.names[0])
        self.started = False
        self._stopped = False
        self.stopping = False
        self.text_limit = TextLimit(model.tokenizer, engine.max_model_len)
        self.grammars = GrammarCompiler.of_bytes()
        """Checks constraints; the engine compiles them for its own vocabulary."""
        self.body_room = BodyRoom(config.max_held_body_bytes)
        self.access = access = access or AccessConfig()
        self.reloads = Reloads(setting_values(config, access))
        self.reloads.register(Reloadable("log level", ["log_level"], _prepare_log_level))
        self.clients = client_addresses(access.allowed_clients, access.trusted_proxies)
        self.reloads.register(Reloadable("clients", ["allowed_clients", "trusted_proxies"], self._prepare_clients))
        self.gate = None if access.api_keys_file is None else Gate(KeyStore(Path(access.api_keys_file)))
        self.allowances = open_allowances(access)
        if self.allowances is not None:
            self.reloads.register(Reloadable("limits", ["limits_file"], partial(_prepare_limits, self.allowances)))
        self.auditor = open_auditor(access, model)
        if self.auditor is not None:
            self.metrics.add(AuditCollector(self.auditor.log))
        self._num_active = 0
        self._cut_off: asyncio.Future[None] | None = None
        self._threads = ThreadPoolExecutor(config.tokenizer_threads, thread_name_prefix="tokenizer")

    async def start(self) -> None:
        await self.engine.start()
        if self.prober is not None:
            await self.prober.start()
        self.started = True

    async def stop(self) -> None:
        """Ends what still runs. Idempotent."""
        self.stopping = True
        if self._stopped:
            return
        self._stopped = True
        if self.prober is not None:
            await self.prober.stop()
        await self.engine.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)
        if self.gate is not None:
            self.gate.close()
        if self.allowances is not None:
            await self.allowances.close()
        if self.auditor is not None:
            await asyncio.to_thread(self.auditor.log.close)

    async def off_loop(self, function: Callable[..., Result], *args: object) -> Result:
        """Runs slow, plain code (tokenizing, templates) on a thread, so that streams go on meanwhile."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    async def constraint(self, asked: AskedConstraint | None) -> Constraint | None:
        """:raises InvalidRequestError: it can't be followed in full"""
        return None if asked is None else await self.off_loop(checked_constraint, self.grammars, asked)

    async def charge(self, tenant: str, num_tokens: int) -> None:
        """For a request that nothing is generated for: it counts as one, with the tokens of its prompt.

        :raises RequestError, AccessStoreError: the tenant may not make it now
        """
        if self.allowances is not None:
            (await self.allowances.reserve(tenant, num_tokens)).settle(num_tokens)

    @contextmanager
    def admission(self) -> Iterator[None]:
        """Around each request that makes work.

        :raises ServerStoppingError: nothing new is taken
        :raises QueueFullError: too many at once
        """
        if self.stopping:
            raise self.stopping_error()
        if self._num_active >= self.config.max_concurrent_requests:
            message = f"{self._num_active} requests are in work already"
            raise QueueFullError(message, retry_after_seconds=BUSY_RETRY_SECONDS)
        self._num_active += 1
        try:
            yield
        finally:
            self._num_active -= 1

    @property
    def num_active(self) -> int:
        """Requests in work, their whole answers included."""
        return self._num_active

    def _prepare_clients(self, settings: Settings) -> Apply:
        clients = client_addresses(settings["allowed_clients"], settings["trusted_proxies"])
        return partial(setattr, self, "clients", clients)

    @property
    def cut_off(self) -> asyncio.Future[None]:
        """Done when running answers must end, finished or not. They then need nothing of the engine, which may hang."""
        if self._cut_off is None:
            self._cut_off = asyncio.get_running_loop().create_future()
        return self._cut_off

    def cut_answers_off(self) -> None:
        if not self.cut_off.done():
            self.cut_off.set_result(None)

    def stopping_error(self) -> ServerStoppingError:
        return ServerStoppingError("the server is stopping", retry_after_seconds=self.config.drain_seconds)

    def check_model(self, name: str, scope: Mapping[str, Any]) -> None:
        """
        :param scope: of ASGI
        :raises ModelNotFoundError: this server doesn't serve it
        :raises PermissionDeniedError: the request's key may not use it
        """
        check_may_use(scope, name)
        if name not in self.model.names:
            raise ModelNotFoundError("this server doesn't serve that model", param="model", hint="see GET /v1/models")
        if (record := CURRENT.get()) is not None:
            record.model = name

    def check_num_choices(self, num_choices: int, param: str) -> None:
        """:raises InvalidRequestError: the engine never takes so many at one time"""
        if num_choices > self.engine.max_requests:
            message = f"{num_choices} choices at once, but this server takes at most {self.engine.max_requests}"
            raise InvalidRequestError(message, param=param)


def _prepare_log_level(settings: Settings) -> Apply:
    return partial(set_log_level, settings["log_level"])


def _prepare_limits(allowances: Allowances, settings: Settings) -> Apply:
    if settings["limits_file"] is None:
        raise ConfigError("limits can't be switched off while the server runs", hint="an empty file limits nobody")
    return allowances.prepare(Path(settings["limits_file"]))


def _prober(engine: EngineClient, question: KnownQuestion | None, config: ServiceConfig) -> Prober | None:
    if question is None or config.probe_interval_seconds == 0:
        return None
    return Prober(
        engine,
        question,
        interval_seconds=config.probe_interval_seconds,
        limit_seconds=config.probe_timeout_seconds,
    )
