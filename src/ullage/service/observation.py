"""The outermost layer, in plain ASGI: gives each request its id and its record, each answer the id, and tells when a
request is complete.
"""

from __future__ import annotations

import logging

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ullage.base.logs import FIELDS, REQUEST_ID
from ullage.protocol.known_path import known_path
from ullage.protocol.request_id import REQUEST_ID_HEADER, request_id_of
from ullage.protocol.request_id import SCOPE_NAME as REQUEST_ID_SCOPE_NAME
from ullage.service.request_record import CURRENT, RequestRecord
from ullage.service.service import Service

POLLED_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/metrics"})
"""Asked every few seconds by machines: worth a line only when something is wrong."""
KNOWN_METHODS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})
OTHER_METHOD = "_OTHER"
"""As OpenTelemetry calls them."""

logger = logging.getLogger(__name__)


class Observer:
    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = self._record(scope)
        bound = CURRENT.set(record), REQUEST_ID.set(record.request_id)

        async def noting_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = record.request_id
            await send(message)

        try:
            await self._app(scope, receive, noting_send)
        finally:
            record.answered()
            CURRENT.reset(bound[0])
            REQUEST_ID.reset(bound[1])

    def _record(self, scope: Scope) -> RequestRecord:
        request_id = scope[REQUEST_ID_SCOPE_NAME] = request_id_of(scope["headers"])
        traceparent = dict(scope["headers"]).get(b"traceparent", b"").decode("ascii", "replace")
        record = RequestRecord(request_id, known_method(scope), known_path(scope), traceparent, self._complete)
        record.client = self._service.clients.of(scope)
        record.keeps_texts = self._service.auditor is not None and self._service.auditor.with_texts
        return record

    def _complete(self, record: RequestRecord) -> None:
        self._service.metrics.observe_answer(record)
        if self._service.auditor is not None:
            self._service.auditor.note(record)
        write_access_line(record)
        if self._service.tracing is not None:
            self._service.tracing.observe(record)


def known_method(scope: Scope) -> str:
    """One of HTTP's own. A client may send any word, however long."""
    method = str(scope["method"])
    return method if method in KNOWN_METHODS else OTHER_METHOD


def write_access_line(record: RequestRecord) -> None:
    """No prompt, no key, and no address but the app's own."""
    level = logging.DEBUG if record.path in POLLED_PATHS and record.status < 400 else logging.INFO
    if not logger.isEnabledFor(level):
        return
    seconds = record.ended_at - record.began_at
    fields = {
        "request_id": record.request_id,
        "method": record.method,
        "path": record.path,
        "status": record.status,
        "seconds": round(seconds, 4),
    }
    line = f"{record.method} {record.path} {record.status} {seconds:.3f} s"
    if record.asked:
        fields |= {
            "prompt_tokens": record.num_prompt_tokens,
            "cached_tokens": record.num_cached_tokens,
            "output_tokens": record.num_output_tokens,
            "finish_reasons": list(record.finish_reasons),
        }
        line += f", {record.num_prompt_tokens} + {record.num_output_tokens} tokens, {','.join(record.finish_reasons)}"
    if record.error_code:
        fields["error_code"] = record.error_code
        line += f", {record.error_code}"
    bound = REQUEST_ID.set(record.request_id)  # the last output may come when another task runs
    logger.log(level, "%s", line, extra={FIELDS: fields})
    REQUEST_ID.reset(bound)
