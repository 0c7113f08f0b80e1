"""The way to one replica: HTTP connections of its own, so that a replica that hangs holds up nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import httpx

from ullage.base.errors import ReplicaError, ReplicaTimeoutError, ReplicaUnreachableError
from ullage.gateway.client_request import ClientRequest, Headers, HeldBody
from ullage.gateway.config import GatewayConfig
from ullage.gateway.in_work import InWork
from ullage.gateway.replica import Replica

MAX_SMALL_BYTES = 1 << 20


class Upstream:
    """HTTP/1.1 to one replica. Belongs to the event loop."""

    def __init__(self, replica: Replica, config: GatewayConfig) -> None:
        self.replica = replica
        self._config = config
        self._url = httpx.URL(replica.config.url)
        timeout = httpx.Timeout(None, connect=config.connect_timeout_seconds, write=config.idle_timeout_seconds)
        # Requests in work are bounded at the door; the environment's proxies and passwords are not meant.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=config.max_concurrent_requests)
        self._client = httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False, follow_redirects=False)

    async def send(self, request: ClientRequest, in_work: InWork) -> httpx.Response:
        """The answer's head; its body is to be read, and ``aclose`` to be called.

        :raises ReplicaUnreachableError: no connection
        :raises ReplicaError: the connection was lost before the answer's head was complete
        :raises ReplicaTimeoutError: the head did not come in time
        """
        config = self._config
        seconds = config.first_byte_timeout_seconds if request.is_stream else config.answer_timeout_seconds
        async with in_work.within(
            seconds, ReplicaTimeoutError(f"{self._name} did not begin to answer within {seconds:g} s")
        ):
            return await self._send(request.method, request.target, request.headers, request.body)

    async def pieces(self, response: httpx.Response, in_work: InWork) -> AsyncGenerator[bytes]:
        """The body as it comes.

        :raises ReplicaError: it broke off
        :raises ReplicaTimeoutError: nothing more came in time
        """
        seconds = self._config.idle_timeout_seconds
        async with aclosing(_generator(response)) as pieces:
            while True:
                try:
                    async with in_work.within(
                        seconds, ReplicaTimeoutError(f"{self._name} was silent for {seconds:g} s")
                    ):
                        piece = await anext(pieces, None)
                except httpx.HTTPError as error:
                    raise ReplicaError(f"{self._name} broke off its answer") from error
                if piece is None:
                    return
                yield piece

    async def fetch(self, path: str, headers: Headers, seconds: float) -> tuple[int, bytes]:
        """Status and body of a small answer.

        :raises ReplicaError: there is none
        """
        try:
            async with asyncio.timeout(seconds):
                response = await self._send("GET", path.encode("ascii"), headers)
                try:
                    body = bytearray()
                    async for piece in response.aiter_raw():
                        body += piece
                        if len(body) > MAX_SMALL_BYTES:
                            raise ReplicaError(f"{self._name} answers {path} with too much")
                finally:
                    await response.aclose()
        except TimeoutError:
            raise ReplicaTimeoutError(f"{self._name} did not answer {path} within {seconds:g} s") from None
        except httpx.HTTPError as error:
            raise ReplicaError(f"{self._name} broke off its answer to {path}") from error
        return response.status_code, bytes(body)

    async def probe(self) -> None:
        """Asks whether the replica is ready, and tells ``replica`` the answer."""
        about = self.replica.config
        headers = [] if about.health_key is None else [(b"authorization", b"Bearer " + about.health_key.encode())]
        try:
            status, _ = await self.fetch(about.health_path, headers, self._config.health_timeout_seconds)
        except ReplicaTimeoutError:
            self.replica.probe_was_silent()
        except ReplicaError as error:
            self.replica.probe_failed(str(error))
        else:
            if status == 200:
                self.replica.probe_passed()
            else:
                self.replica.probe_failed(f"{about.health_path} answers {status}")

    async def close(self) -> None:
        await self._client.aclose()

    @property
    def _name(self) -> str:
        return f"the replica {self.replica.config.name}"

    async def _send(self, method: str, target: bytes, headers: Headers, body: HeldBody | None = None) -> httpx.Response:
        url = self._url.copy_with(raw_path=target)
        if body is not None and body.num_bytes:
            headers = [*headers, (b"content-length", str(body.num_bytes).encode())]
            request = httpx.Request(method, url, headers=headers, content=body)
        else:
            request = httpx.Request(method, url, headers=headers)
        try:
            return await self._client.send(request, stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise ReplicaUnreachableError(f"{self._name} can't be reached") from error
        except httpx.HTTPError as error:
            raise ReplicaError(f"{self._name} closed the connection before it answered") from error


async def _generator(response: httpx.Response) -> AsyncGenerator[bytes]:
    async for piece in response.aiter_raw():
        yield piece
