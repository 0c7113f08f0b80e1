from __future__ import annotations

import pytest

from ullage.base.errors import ConfigError
from ullage.plan.engines.version import parse_version


@pytest.mark.parametrize("text", ["0.21", "0.21.0", "v0.21.3", "0.21.0rc1.dev93+g11a4c9d30", ">=0.21", "b850"])
def test_a_version_is_at_least_what_it_reaches(text):
    assert parse_version(text).at_least(0, 21)


@pytest.mark.parametrize("text", ["0.20.2", "<0.21", "0.9.1", "<=0.20"])
def test_a_version_below_is_not(text):
    assert not parse_version(text).at_least(0, 21)


@pytest.mark.parametrize("text", ["", "new", "-1", "x0.2"])
def test_what_is_no_version_is_refused(text):
    with pytest.raises(ConfigError, match="engine_version"):
        parse_version(text)
