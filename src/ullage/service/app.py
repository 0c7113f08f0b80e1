"""The HTTP app of one engine: which address does what."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ullage.access.config import AccessConfig
from ullage.access.tenant import tenant_of
from ullage.base.errors import (
    ConfigError,
    DeadlineError,
    EngineRestartingError,
    InvalidRequestError,
    MethodNotAllowedError,
    PermissionDeniedError,
    ServerStoppingError,
    UllageError,
    UnknownPathError,
)
from ullage.engine.client import EngineClient
from ullage.protocol.errors import error_reply
from ullage.protocol.json_text import encode_json
from ullage.protocol.known_path import known_path
from ullage.service import health, models
from ullage.service.allow_list import AllowList
from ullage.service.chat import create_chat_completion
from ullage.service.completions import create_completion
from ullage.service.config import ServiceConfig
from ullage.service.cors import Cors
from ullage.service.door import Door
from ullage.service.known_answer import KnownQuestion
from ullage.service.metrics import CONTENT_TYPE
from ullage.service.observation import Observer, known_method
from ullage.service.openapi import openapi_document
from ullage.service.request_record import note_error
from ullage.service.served_model import ServedModel
from ullage.service.service import Service
from ullage.service.tokenize import detokenize, tokenize
from ullage.service.usage import usage as tell_usage

READ = ["GET", "HEAD"]

logger = logging.getLogger(__name__)


def create_app(
    engine: EngineClient,
    model: ServedModel,
    config: ServiceConfig,
    access: AccessConfig | None = None,
    question: KnownQuestion | None = None,
) -> FastAPI:
    """The app. Its lifespan starts and stops the engine; ``app.state.service`` is what the routes share.

    :param question: by whose answer readiness is proved; None: by the engine's own word
    """
    service = Service(engine, model, config, access, question)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.stop()

    app = FastAPI(lifespan=lifespan, openapi_url=None, redirect_slashes=False)
    app.state.service = service
    app.add_middleware(Door, service=service)
    if service.access.origins:
        app.add_middleware(Cors, origins=service.access.origins)
    app.add_middleware(AllowList, service=service)
    app.add_middleware(Observer, service=service)  # the last one is the outermost
    app.add_exception_handler(UllageError, _answer_error)
    app.add_exception_handler(HTTPException, _answer_http_exception)
    _add_api_routes(app, service)
    _add_health_routes(app, service)
    return app


def _add_api_routes(app: FastAPI, service: Service) -> None:
    @app.api_route("/v1/models", methods=READ)
    async def list_models(request: Request) -> Response:
        return _json(models.list_models(service, request.scope))

    @app.api_route("/v1/models/{name:path}", methods=READ)
    async def show_model(request: Request, name: str) -> Response:
        return _json(models.show_model(service, name, request.scope))

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await create_chat_completion(service, request)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await create_completion(service, request)

    @app.post("/v1/embeddings")
    async def embeddings() -> Response:
        raise InvalidRequestError("this model generates text; it does not make embeddings", param="model")

    @app.post("/tokenize")
    async def tokenize_prompt(request: Request) -> Response:
        return await tokenize(service, request)

    @app.post("/detokenize")
    async def detokenize_tokens(request: Request) -> Response:
        return await detokenize(service, request)


def _add_health_routes(app: FastAPI, service: Service) -> None:
    @app.api_route("/health/live", methods=READ)
    async def live() -> Response:
        status, body = health.live(service)
        return _json(body, status)

    @app.api_route("/health", methods=READ)  # where other servers of this kind have it, and their clients look
    @app.api_route("/health/ready", methods=READ)
    async def ready() -> Response:
        status, body = health.ready(service)
        return _json(body, status)

    @app.api_route("/metrics", methods=READ)
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    @app.post("/admin/reload")
    async def reload() -> Response:
        if service.gate is None:  # behind a proxy everybody looks like a neighbour, and browsers post where pages say
            raise PermissionDeniedError("the admin routes need API keys; without them, send the process SIGHUP")
        try:
            return _json({"changed": await service.reloads.reload()})
        except ConfigError as error:
            raise InvalidRequestError(f"nothing was reloaded: {error}") from error

    @app.api_route("/v1/usage", methods=READ)
    async def usage(request: Request) -> Response:
        return _json(await tell_usage(service, tenant_of(request.scope)))

    @app.api_route("/v1/ledger", methods=READ)
    async def ledger() -> Response:
        return _json(health.ledger(service))

    document = encode_json(openapi_document(service.model.names, needs_keys=service.gate is not None))

    @app.api_route("/openapi.json", methods=READ)
    async def openapi() -> Response:
        return Response(document, media_type="application/json")


def _json(body: Mapping[str, object], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode_json(body), status_code=status, headers=headers, media_type="application/json")


async def _answer_error(request: Request, error: Exception) -> Response:
    reply = error_reply(error)
    note_error(reply)
    if reply.status >= 500 and not isinstance(error, (DeadlineError, EngineRestartingError, ServerStoppingError)):
        logger.error("%s %s: %s", known_method(request.scope), known_path(request.scope), error)
    return _json(reply.body, reply.status, reply.headers)


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    """What the router itself raises: 404 and 405, told in the API's own shape."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allow = Headers(error.headers or {}).get("allow", "")  # names in any case
        return await _answer_error(request, MethodNotAllowedError("that method is not allowed here", allow=allow))
    if error.status_code == 404:
        return await _answer_error(request, UnknownPathError("there is nothing at this address"))
    return await _answer_error(request, InvalidRequestError(error.detail))
