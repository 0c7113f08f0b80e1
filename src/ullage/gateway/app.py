"""The HTTP app of the gateway: which address does what."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ullage.base.errors import InvalidRequestError, MethodNotAllowedError, UllageError, UnknownPathError
from ullage.gateway.client_request import STREAMING_PATHS
from ullage.gateway.door import Door
from ullage.gateway.gateway import Gateway
from ullage.gateway.metrics import CONTENT_TYPE, metrics_text, registry_of
from ullage.gateway.models import list_models
from ullage.gateway.proxy import Proxy
from ullage.gateway.replica import FAILURES, Replica
from ullage.protocol.errors import error_reply
from ullage.protocol.json_text import encode_json
from ullage.protocol.request_id import REQUEST_ID_HEADER, SCOPE_NAME

PASSED_ON = (*sorted(STREAMING_PATHS), "/tokenize", "/detokenize", "/v1/{path:path}")
"""Those with a name of their own are told by it in the log."""


def create_app(gateway: Gateway) -> Door:
    """The app. Its lifespan starts and stops the gateway."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await gateway.start()
        try:
            yield
        finally:
            await gateway.stop()

    proxy = Proxy(gateway)
    routes = [*_own_routes(gateway), *(Route(path, proxy) for path in PASSED_ON)]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={HTTPException: _answer_http_exception, UllageError: _answer_error},
    )
    app.router.redirect_slashes = False
    door = Door(app)
    registry = registry_of(gateway, door.num_answers)

    async def metrics(_: Request) -> Response:
        return Response(metrics_text(registry), media_type=CONTENT_TYPE)

    app.router.routes.insert(0, Route("/metrics", metrics))
    return door


def _own_routes(gateway: Gateway) -> list[Route]:
    async def live(_: Request) -> Response:
        return _json({"status": "live"})

    async def ready(_: Request) -> Response:
        num_ready = gateway.rotation.num_in_rotation
        status = "draining" if gateway.in_work.stopping else "ready" if num_ready else "no_replica"
        body = {"status": status, "num_replicas": len(gateway.replicas), "num_in_rotation": num_ready}
        return _json(body, 200 if status == "ready" else 503)

    async def replicas(_: Request) -> Response:
        return _json({"replicas": [_about(replica) for replica in gateway.replicas]})

    async def models(request: Request) -> Response:
        with gateway.in_work.request():
            headers = [(name, value) for name, value in request.headers.raw if name == b"authorization"]
            headers += gateway.forwarded.of(request.scope)
            headers.append((REQUEST_ID_HEADER.encode(), request.scope[SCOPE_NAME].encode()))
            status, body = await list_models(gateway, headers)
            return _json(body, status)

    paths = {"/health/live": live, "/health/ready": ready, "/gateway/replicas": replicas, "/v1/models": models}
    return [Route(path, endpoint) for path, endpoint in paths.items()]


def _about(replica: Replica) -> dict[str, object]:
    return {
        "name": replica.config.name,
        "url": replica.config.url,
        "state": replica.state,
        "reason": replica.reason,
        "weight": replica.config.weight,
        "weight_now": replica.weight,
        "outstanding": replica.num_outstanding,
        "errors": sum(count for outcome, count in replica.counts.items() if outcome in FAILURES),
        "outcomes": dict(replica.counts),
    }


def _json(body: Mapping[str, object], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode_json(body), status_code=status, headers=headers, media_type="application/json")


async def _answer_error(_: Request, error: Exception) -> Response:
    reply = error_reply(error)
    return _json(reply.body, reply.status, reply.headers)


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    """What the router itself raises: 404 and 405, told in the API's own shape."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allow = Headers(error.headers or {}).get("allow", "")
        return await _answer_error(request, MethodNotAllowedError("that method is not allowed here", allow=allow))
    if error.status_code == 404:
        return await _answer_error(request, UnknownPathError("there is nothing at this address"))
    return await _answer_error(request, InvalidRequestError(error.detail))
