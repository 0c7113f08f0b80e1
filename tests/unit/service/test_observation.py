"""What the log says of a request's address."""

from __future__ import annotations

import pytest
from tests.scripted_engine import ScriptedEngine, scripted_model

from ullage.protocol.known_path import UNKNOWN_PATH, known_path
from ullage.service.app import create_app
from ullage.service.config import ServiceConfig
from ullage.service.observation import OTHER_METHOD, known_method


@pytest.mark.parametrize(
    ("method", "path", "shown"),
    [
        ("POST", "/v1/completions", "/v1/completions"),
        ("PUT", "/v1/completions", "/v1/completions"),
        ("GET", "/v1/models/ullage-0-secret", "/v1/models/{name}"),
        ("GET", "/ullage-0-secret/v1/completions", UNKNOWN_PATH),
        ("POST", "/v1/completions/\n", UNKNOWN_PATH),
    ],
)
def test_an_address_is_told_in_the_apps_own_writing(method, path, shown):
    app = create_app(ScriptedEngine(), scripted_model(), ServiceConfig())
    scope = {"type": "http", "app": app, "method": method, "path": path, "root_path": "", "headers": []}
    assert known_path(scope) == shown


@pytest.mark.parametrize(
    ("method", "shown"),
    [("GET", "GET"), ("PATCH", "PATCH"), ("ULLAGE-0-SECRET", OTHER_METHOD), ("get", OTHER_METHOD), ("", OTHER_METHOD)],
)
def test_a_method_is_told_only_when_it_is_one_of_http_s_own(method, shown):
    assert known_method({"type": "http", "method": method}) == shown
