from __future__ import annotations

import pytest

from ullage.base.errors import ConfigError
from ullage.protocol.orderly_server import address_of
from ullage.service.config import ServiceConfig
from ullage.service.server import bind


def test_a_port_in_use_is_refused_with_advice():
    with bind(ServiceConfig(port=0)) as bound:
        bound.listen()
        with pytest.raises(ConfigError) as caught:
            bind(ServiceConfig(port=bound.getsockname()[1]))
    assert "--port" in (caught.value.hint or "")


def test_the_address_can_be_pasted():
    with bind(ServiceConfig(port=0)) as bound:
        assert address_of(bound) == f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.parametrize("config", [ServiceConfig(host="not an address"), ServiceConfig(port=70000)])
def test_what_is_no_address_is_refused(config):
    with pytest.raises(ConfigError):
        bind(config)
