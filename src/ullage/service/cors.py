"""Answers browsers that ask whether a page of another origin may call this server."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from ullage.base.errors import PermissionDeniedError
from ullage.protocol.errors import error_reply
from ullage.protocol.json_text import encode_json

METHODS = ("GET", "HEAD", "POST")
MAX_AGE_SECONDS = 600


class Cors(CORSMiddleware):
    """Starlette's. Keys travel in a header that pages set themselves, so no cookies are allowed; which headers a page
    sends is its own affair."""

    def __init__(self, app: ASGIApp, origins: tuple[str, ...]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=METHODS,
            allow_headers=("*",),
            expose_headers=("*",),  # request ids, retry-after, what is left of a limit
            max_age=MAX_AGE_SECONDS,
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return Response(status_code=204, headers=_without_body(response))
        reply = error_reply(PermissionDeniedError("pages of that origin may not send that request to this server"))
        headers = _without_body(response) | {"content-type": "application/json"}
        return Response(encode_json(reply.body), reply.status, headers)


def _without_body(response: Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if not name.startswith("content-")}
