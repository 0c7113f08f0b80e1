"""GET /openapi.json: what this server takes and gives, as it is set up: its models, and whether it asks for keys.

Source: OpenAPI Specification 3.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter

from ullage import __version__
from ullage.access.gate import OPEN_PATH
from ullage.protocol import sse
from ullage.protocol.chat import ChatChunk, ChatCompletion, ChatCompletionRequest
from ullage.protocol.completions import Completion, CompletionRequest
from ullage.protocol.errors import ErrorBody
from ullage.protocol.fields import FIELD_RULES
from ullage.protocol.models import ModelCard, ModelList
from ullage.protocol.request_id import REQUEST_ID_HEADER
from ullage.protocol.tokenize import Detokenized, DetokenizeRequest, TokenizeChatRequest, TokenizeTextRequest, Tokens
from ullage.service.deadline import TIMEOUT_HEADER
from ullage.service.metrics import CONTENT_TYPE

Json = dict[str, Any]
SchemaMode = Literal["validation", "serialization"]

JSON = "application/json"
DESCRIPTIONS = {
    200: "What was asked for",
    400: "The request is wrong or can never be served; `param` names the field",
    401: "No valid API key",
    403: "A valid API key that may not do this",
    404: "Nothing has that name",
    408: "The body did not arrive in time",
    413: "The body is too large",
    429: "No room for now, or an allowance is used up; `Retry-After` says when to come back",
    431: "The header is too large",
    500: "A mistake of this server",
    503: "The engine or the server is on its way up or down",
    504: "The request took longer than it may",
}
_REQUEST_ID: Json = {
    "name": REQUEST_ID_HEADER,
    "in": "header",
    "description": "Comes back on the answer if it is short printable ASCII; otherwise a fresh one does",
    "schema": {"type": "string"},
}
_TIMEOUT: Json = {
    "name": TIMEOUT_HEADER,
    "in": "header",
    "description": "Seconds that the request may take; the shortest of this, the field and the server's limit holds",
    "schema": {"type": "number", "exclusiveMinimum": 0},
}
ALWAYS = (400, 429, 431, 500)
"""What the connection itself may answer, before anybody knows the address, and our own mistakes."""
WITH_KEYS = (401, 403, 503)
WITH_BODY = (404, 408, 413)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method at one address."""

    path: str
    summary: str
    method: Literal["get", "post"] = "get"
    takes: tuple[Any, ...] = ()
    """Request models, of which the body is one."""
    gives: Any = None
    """Type of the answer; None: a JSON object that isn't described further."""
    media_type: str = JSON
    streams: Any = None
    """Type of an event's data, where the answer may be a stream."""
    statuses: tuple[int, ...] = (200,)
    """Those of its own, besides what any request may meet."""


OPERATIONS = (
    Operation(
        "/v1/chat/completions",
        "Answer a chat",
        "post",
        (ChatCompletionRequest,),
        ChatCompletion,
        streams=ChatChunk,
        statuses=(200, 504),
    ),
    Operation(
        "/v1/completions",
        "Continue a text",
        "post",
        (CompletionRequest,),
        Completion,
        streams=Completion,
        statuses=(200, 504),
    ),
    Operation("/v1/embeddings", "Always refused: the model generates text", "post", statuses=(400,)),
    Operation("/v1/models", "List the models", gives=ModelList),
    Operation("/v1/models/{model}", "Describe a model", gives=ModelCard, statuses=(200, 404)),
    Operation("/tokenize", "Text or chat to token ids", "post", (TokenizeTextRequest, TokenizeChatRequest), Tokens),
    Operation("/detokenize", "Token ids to text", "post", (DetokenizeRequest,), Detokenized),
    Operation("/admin/reload", "Read settings and files again, all or none", "post", statuses=(200, 400, 403)),
    Operation("/v1/usage", "What the tenant of the key may use, and has used"),
    Operation("/v1/ledger", "Memory by account, in bytes"),
    Operation("/health/live", "Whether only a restart could help", statuses=(200, 503)),
    Operation("/health/ready", "Whether a new request would be served", statuses=(200, 503)),
    Operation("/health", "The same as /health/ready", statuses=(200, 503)),
    Operation("/metrics", "Figures for Prometheus", media_type=CONTENT_TYPE),
    Operation("/openapi.json", "This document"),
)


def openapi_document(model_names: Sequence[str], *, needs_keys: bool) -> Json:
    """:param needs_keys: whether every address but liveness asks for an API key"""
    wanted = [(cls, "validation") for operation in OPERATIONS for cls in operation.takes]
    given = {cls for operation in OPERATIONS for cls in (operation.gives, operation.streams) if cls is not None}
    wanted += [(cls, "serialization") for cls in sorted({*given, ErrorBody}, key=lambda cls: cls.__name__)]
    schemas = _schemas(wanted)
    for operation in OPERATIONS:
        for cls in operation.takes:
            _make_exact(schemas[cls.__name__], model_names)
    components: Json = {
        "schemas": schemas,
        "headers": {REQUEST_ID_HEADER: {"schema": {"type": "string"}, "required": True}},
    }
    document: Json = {
        "openapi": "3.1.0",
        "info": {"title": "Ullage", "version": __version__},
        "paths": {},
        "components": components,
    }
    if needs_keys:
        components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"bearer": []}]
    for operation in OPERATIONS:
        described = _described(operation, model_names, needs_keys=needs_keys)
        document["paths"].setdefault(operation.path, {})[operation.method] = described
    return document


def _schemas(wanted: Sequence[tuple[Any, str]]) -> Json:
    """By the classes' names, and all that they are made of."""
    adapters: list[Any] = [(cls.__name__, mode, TypeAdapter(cls)) for cls, mode in wanted]
    refs, definitions = TypeAdapter.json_schemas(adapters, ref_template="#/components/schemas/{model}")
    named = {name: schema for (name, _), schema in refs.items() if "$ref" not in schema}
    return {**definitions.get("$defs", {}), **named}


def _make_exact(schema: Json, model_names: Sequence[str]) -> None:
    """Adds what isn't in the request model: which models there are, and what becomes of the fields it doesn't take."""
    optional = "model" not in schema["required"]
    schema["properties"]["model"] = {"enum": [*model_names, *([None] if optional else [])]}
    for name, rule in FIELD_RULES.items():
        described: Json = {"description": f"{rule.rule}: {rule.reason}"}
        if rule.rule == "refused":
            described["enum"] = [None, *rule.neutral]
        schema["properties"].setdefault(name, described)


def _described(operation: Operation, model_names: Sequence[str], *, needs_keys: bool) -> Json:
    described: Json = {"summary": operation.summary, "operationId": _operation_id(operation)}
    is_open = operation.path == OPEN_PATH
    if needs_keys and is_open:
        described["security"] = []
    described["parameters"] = [_REQUEST_ID]
    if "{model}" in operation.path:
        schema = {"enum": list(model_names)}
        described["parameters"].append({"name": "model", "in": "path", "required": True, "schema": schema})
    if operation.streams is not None:
        described["parameters"].append(_TIMEOUT)
    if operation.takes:
        described["requestBody"] = {"required": True, "content": {JSON: {"schema": _one_of(operation.takes)}}}
    statuses = {*operation.statuses, *ALWAYS}
    statuses |= set(WITH_BODY) if operation.takes else set()
    statuses |= {503} if operation.method == "post" else set()
    statuses |= set(WITH_KEYS) if needs_keys and not is_open else set()
    described["responses"] = {str(status): _response(operation, status) for status in sorted(statuses)}
    return described


def _operation_id(operation: Operation) -> str:
    words = operation.path.removeprefix("/v1").replace("{model}", "one").replace(".", "/").split("/")
    return "_".join([operation.method, *filter(None, words)])


def _response(operation: Operation, status: int) -> Json:
    content: Json = {JSON: {"schema": _ref("ErrorBody")}}
    if operation.path.startswith("/health/") and status in operation.statuses:
        state = {"type": "object", "required": ["status"]}
        content = {JSON: {"schema": state if status == 200 else {"anyOf": [state, _ref("ErrorBody")]}}}
    elif status == 200:
        schema = {"type": "object"} if operation.gives is None else _ref(operation.gives.__name__)
        content = {operation.media_type: {"schema": schema if operation.media_type == JSON else {"type": "string"}}}
        if operation.streams is not None:
            content[sse.MEDIA_TYPE] = {"schema": _event(operation.streams)}
    headers = {REQUEST_ID_HEADER: {"$ref": f"#/components/headers/{REQUEST_ID_HEADER}"}}
    return {"description": DESCRIPTIONS[status], "headers": headers, "content": content}


def _event(cls: Any) -> Json:
    """One event of a stream: that is what readers of OpenAPI take such a schema for."""
    chunk = {"anyOf": [_ref(cls.__name__), _ref("ErrorBody")]}
    text = {"type": "string", "contentMediaType": JSON, "contentSchema": chunk}
    return {"type": "object", "required": ["data"], "properties": {"data": {"anyOf": [text, {"const": "[DONE]"}]}}}


def _one_of(classes: Sequence[Any]) -> Mapping[str, Any]:
    refs = [_ref(cls.__name__) for cls in classes]
    return refs[0] if len(refs) == 1 else {"anyOf": refs}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}
