"""GET /v1/models: all models of all replicas that answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from ullage.base.errors import NoReplicaError, ReplicaError
from ullage.gateway.client_request import Headers
from ullage.gateway.gateway import Gateway

PATH = "/v1/models"


async def list_models(gateway: Gateway, headers: Headers) -> tuple[int, dict[str, Any]]:
    """Status and body: the union by name. Where no replica has a list, a refusal that all give, like 401, is told.

    :param headers: for the replicas
    :raises NoReplicaError: no replica answers
    """
    replicas = [replica for replica in gateway.replicas if replica.state not in ("down", "unknown")]
    seconds = gateway.config.health_timeout_seconds
    asking = (gateway.upstream(replica).fetch(PATH, headers, seconds) for replica in replicas)
    results = await asyncio.gather(*asking, return_exceptions=True)
    answers = [_json(result) for result in results]
    cards: dict[str, object] = {}
    for status, body in filter(None, answers):
        for card in body.get("data", ()) if status == 200 else ():
            cards.setdefault(card["id"], card)
    refusals = [answer for answer in answers if answer is not None and 400 <= answer[0] < 500]
    if any(answer is not None and answer[0] == 200 for answer in answers):
        return 200, {"object": "list", "data": list(cards.values())}
    if refusals:
        return refusals[0]
    raise NoReplicaError("no replica lists its models", retry_after_seconds=gateway.config.health_interval_seconds)


def _json(result: tuple[int, bytes] | BaseException) -> tuple[int, dict[str, Any]] | None:
    """None: not an answer of this API."""
    if isinstance(result, ReplicaError):
        return None
    if isinstance(result, BaseException):
        raise result
    status, body = result
    try:
        value = json.loads(body)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    if status == 200 and not _is_list(value.get("data")):
        return None
    return status, value


def _is_list(data: object) -> bool:
    return isinstance(data, list) and all(isinstance(card, dict) and isinstance(card.get("id"), str) for card in data)
