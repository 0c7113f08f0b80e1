"""One request on its way to a replica, and the answer on its way back.

A request is offered to another replica only while no head of an answer has come: no connection could be made, the
connection was lost, or the answer is 503 with Retry-After, by which a replica says that it hasn't taken the request.
One that was silent for too long may be at work on it, so its request is not repeated. From its head on, an answer is
passed on as it is. A stream goes on event by event, so an event that broke off is never seen; an error event is then
the last one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass

import httpx
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from ullage.base.errors import (
    NoReplicaError,
    ReplicaError,
    ReplicaTimeoutError,
    ReplicaUnreachableError,
    UllageError,
)
from ullage.gateway.client_request import ClientRequest, passed_on, read_request
from ullage.gateway.door import note_turn
from ullage.gateway.event_split import EventSplitter, error_of, is_done
from ullage.gateway.gateway import Gateway
from ullage.gateway.replica import Outcome, Replica, Turn
from ullage.protocol import sse
from ullage.protocol.disconnect import run_unless_client_leaves
from ullage.protocol.errors import ERROR_TABLE, error_reply
from ullage.protocol.request_id import REQUEST_ID_HEADER

WRITTEN_ANEW = frozenset({b"date", REQUEST_ID_HEADER.encode()})
AT_FAULT = "invalid_request_error"
"""The type of all errors that find fault with the request, whatever their code."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """One whose head has come."""

    turn: Turn
    response: httpx.Response


class Proxy:
    """An ASGI app."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = self._gateway
        with gateway.in_work.request():
            with gateway.body_room.body() as take:  # until no replica can need the body any more
                request = await read_request(
                    Request(scope, receive), gateway.config, gateway.forwarded, gateway.in_work, take
                )
                try:
                    answer = await run_unless_client_leaves(receive, self._begin(request))
                finally:
                    request.body.let_go()
            try:
                await run_unless_client_leaves(receive, self._pass_on(request, answer, send))
            finally:
                answer.turn.end("abandoned")  # unless it ended otherwise before
                await answer.response.aclose()

    async def _begin(self, request: ClientRequest) -> Answer:
        """:raises NoReplicaError, ReplicaError: no replica has begun to answer"""
        tried: list[Replica] = []
        answer: Answer | None = None
        lost: ReplicaError | None = None
        while len(tried) < self._gateway.config.max_attempts:
            replica = self._gateway.rotation.choose(key=request.sticky_key, without=tried)
            if replica is None:
                break
            if answer is not None:
                answer.turn.end("not_taken")
                await answer.response.aclose()
                answer = None
            tried.append(replica)
            try:
                answer = await self._offer(request, replica)
            except ReplicaTimeoutError:
                raise
            except ReplicaError as error:
                lost = error
                continue
            if not _was_not_taken(answer.response):
                break
            replica.probe_failed("it takes no requests now")
        if answer is not None:
            return answer
        if lost is not None and not isinstance(lost, ReplicaUnreachableError):
            raise lost
        seconds = self._gateway.config.health_interval_seconds
        raise NoReplicaError("no replica is in rotation", retry_after_seconds=seconds)

    async def _offer(self, request: ClientRequest, replica: Replica) -> Answer:
        turn = replica.request_began()
        note_turn(turn)
        try:
            response = await self._gateway.upstream(replica).send(request, self._gateway.in_work)
        except ReplicaError as error:
            turn.end("timeout" if isinstance(error, ReplicaTimeoutError) else "unreachable", str(error))
            if isinstance(error, ReplicaUnreachableError):
                replica.probe_failed(str(error))  # no need to wait for the next probe
            raise
        except BaseException:
            turn.end("abandoned")
            raise
        return Answer(turn, response)

    async def _pass_on(self, request: ClientRequest, answer: Answer, send: Send) -> None:
        response = answer.response
        headers = passed_on(response.headers.raw, WRITTEN_ANEW)
        await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        is_plain = "content-encoding" not in response.headers
        if is_plain and response.headers.get("content-type", "").startswith(sse.MEDIA_TYPE):
            await self._pass_events_on(request, answer, send)
        else:
            await self._pass_bytes_on(answer, send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pass_bytes_on(self, answer: Answer, send: Send) -> None:
        """:raises UllageError: it broke off; that can only be told by closing the connection too early"""
        turn = answer.turn
        upstream = self._gateway.upstream(turn.replica)
        try:
            async with aclosing(upstream.pieces(answer.response, self._gateway.in_work)) as pieces:
                async for piece in pieces:
                    await _send(send, piece)
        except UllageError as error:
            turn.end(_outcome_of_error(error), str(error))
            raise
        outcome = _outcome_of_answer(answer.response)
        turn.end(outcome, f"it answers {answer.response.status_code}")

    async def _pass_events_on(self, request: ClientRequest, answer: Answer, send: Send) -> None:
        turn = answer.turn
        upstream = self._gateway.upstream(turn.replica)
        splitter = EventSplitter()
        ending: Outcome | None = None
        try:
            async with aclosing(upstream.pieces(answer.response, self._gateway.in_work)) as pieces:
                async for piece in pieces:
                    for event in splitter.split(piece):
                        ending = ending or _ending(event)
                        await _send(send, event)
                    if len(splitter.rest) > self._gateway.config.max_event_bytes:
                        raise ReplicaError("an event of the stream is larger than max_event_bytes")
            if request.ends_with_done and ending is None:
                raise ReplicaError(f"the replica {turn.replica.config.name} ended its stream too early")
            if splitter.rest:
                await _send(send, bytes(splitter.rest))
        except UllageError as error:
            if ending is None:
                ending = _outcome_of_error(error)
                logger.warning("stream ended by an error: %s", error)
                turn.end(ending, str(error))
                await _send(send, sse.encode_event(error_reply(error).body))
        turn.end(ending or "ok", "its stream ended with an error")


async def _send(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _was_not_taken(response: httpx.Response) -> bool:
    return response.status_code == 503 and "retry-after" in response.headers


def _outcome_of_answer(response: httpx.Response) -> Outcome:
    """Of one that came whole. By ``x-should-retry: false`` a replica says that the request is at fault."""
    status = response.status_code
    if status < 400:
        return "ok"
    if _was_not_taken(response):
        return "not_taken"
    if status >= 500:
        return "refused" if response.headers.get("x-should-retry") == "false" else "failed"
    return "busy" if status == 429 else "refused"


def _outcome_of_error(error: UllageError) -> Outcome:
    if isinstance(error, ReplicaTimeoutError):
        return "timeout"
    return "cut" if isinstance(error, ReplicaError) else "abandoned"


def _ending(event: bytes) -> Outcome | None:
    """What this event says of the whole stream, if it can be the last."""
    if is_done(event):
        return "ok"
    error = error_of(event)
    return None if error is None else _outcome_of_error_event(error)


def _outcome_of_error_event(error: Mapping[str, object]) -> Outcome:
    """As if it had been told by the answer's status."""
    told = (error.get("type"), error.get("code"))
    row = next((row for row in ERROR_TABLE.values() if (row.type, row.code) == told), None)
    if told[0] == AT_FAULT or (row is not None and row.never_retry):
        return "refused"
    return "busy" if row is not None and row.status == 429 else "failed"
