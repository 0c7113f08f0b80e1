from __future__ import annotations

import pytest

from ullage.base.errors import ConfigError
from ullage.gateway.config import GatewayConfig


@pytest.mark.parametrize(
    "settings",
    [
        {"max_body_bytes": 10, "max_held_body_bytes": 9},
        {"ejection_error_rate": 0.0},
        {"trusted_proxies": "10.0.0.1/8"},
        {"ejection_error_rate": 1.1},
        {"ejection_seconds": 10.0, "max_ejection_seconds": 9.0},
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings):
    with pytest.raises(ConfigError):
        GatewayConfig(**settings)


def test_the_defaults_can_be_honoured():
    assert GatewayConfig().sticky_bytes == 0
