"""The served document says what the app does: every address, every field, every status that tests of it meet."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.routing import APIRoute
from tests.http_server import app_client
from tests.scripted_engine import ScriptedEngine, scripted_model

from ullage.protocol.chat import ChatCompletionRequest
from ullage.protocol.fields import FIELD_RULES
from ullage.service.app import create_app
from ullage.service.config import ServiceConfig
from ullage.service.openapi import openapi_document


async def served() -> Any:
    async with app_client(ScriptedEngine()) as client:
        return (await client.get("/openapi.json")).json()


async def test_every_route_is_in_the_document_and_nothing_else():
    app = create_app(ScriptedEngine(), scripted_model(), ServiceConfig())
    routes = {
        (route.path.replace("{name:path}", "{model}"), method.lower())
        for route in app.routes
        if isinstance(route, APIRoute)
        for method in route.methods - {"HEAD"}
    }
    paths = (await served())["paths"]
    assert {(path, method) for path, methods in paths.items() for method in methods} == routes


async def test_a_request_has_every_field_that_is_honoured_and_every_one_that_is_known():
    schema = (await served())["components"]["schemas"]["ChatCompletionRequest"]
    assert set(schema["properties"]) == set(ChatCompletionRequest.model_fields) | set(FIELD_RULES)
    assert sorted(schema["required"]) == ["messages", "model"]
    assert schema["properties"]["model"] == {"enum": ["org/tiny", "tiny"]}
    assert schema["properties"]["suffix"]["enum"] == [None, ""]


async def test_forms_that_are_accepted_are_described():
    schemas = (await served())["components"]["schemas"]
    content = schemas["Message"]["properties"]["content"]["anyOf"]
    assert [form["type"] for form in content] == ["string", "array", "null"]
    assert len(schemas["CompletionRequest"]["properties"]["prompt"]["anyOf"]) == 4
    assert schemas["ErrorDetail"]["required"] == ["message", "type", "param", "code"]


async def test_streams_and_errors_have_their_own_types():
    responses = (await served())["paths"]["/v1/completions"]["post"]["responses"]
    assert responses["200"]["content"].keys() == {"application/json", "text/event-stream"}
    assert responses["400"]["content"].keys() == {"application/json"}
    assert {"400", "404", "408", "413", "429", "431", "500", "503", "504"} <= responses.keys()


@pytest.mark.parametrize("needs_keys", [True, False])
def test_keys_are_in_the_document_where_they_are_asked_for(needs_keys):
    document = openapi_document(["tiny"], needs_keys=needs_keys)
    assert ("security" in document) is needs_keys
    assert ("securitySchemes" in document["components"]) is needs_keys
    assert ("401" in document["paths"]["/v1/models"]["get"]["responses"]) is needs_keys
    assert "401" not in document["paths"]["/health/live"]["get"]["responses"]
