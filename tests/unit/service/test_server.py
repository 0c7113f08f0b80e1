from __future__ import annotations

import resource

import pytest

from ullage.base.errors import ConfigError
from ullage.service.server import allow_open_files


@pytest.fixture
def limits(monkeypatch):
    """(soft, hard) of a pretended system."""
    pretended = {"now": (1024, 4096)}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: pretended["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: pretended.update(now=limits))
    return pretended


def test_a_low_limit_of_open_files_is_raised(limits):
    allow_open_files(2112)
    assert limits["now"] == (2112, 4096)


@pytest.mark.parametrize("now", [(1024, 4096), (resource.RLIM_INFINITY, resource.RLIM_INFINITY)])
def test_a_limit_that_is_high_enough_stays(limits, now):
    limits["now"] = now
    allow_open_files(1000)
    assert limits["now"] == now


def test_more_files_than_the_system_allows_are_refused(limits):
    with pytest.raises(ConfigError, match="needs 5000 open files, the system allows 4096"):
        allow_open_files(5000)
    assert limits["now"] == (1024, 4096)
