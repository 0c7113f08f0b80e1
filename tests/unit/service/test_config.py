from __future__ import annotations

import pytest

from ullage.base.config import settings_from_arguments
from ullage.base.errors import ConfigError
from ullage.service.config import ServiceConfig


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ping_seconds", 0),
        ("stall_seconds", 0.5),
        ("drain_seconds", -1),
        ("header_timeout_seconds", 0),
        ("body_timeout_seconds", 0),
        ("send_timeout_seconds", 0),
        ("keep_alive_seconds", -1),
        ("max_connections", 0),
        ("max_held_body_bytes", 1 << 20),
    ],
)
def test_a_setting_that_can_not_be_honoured_is_refused(name, value):
    with pytest.raises(ConfigError):
        settings_from_arguments(ServiceConfig, {name: value})
    assert settings_from_arguments(ServiceConfig, {}) == ServiceConfig()
