from __future__ import annotations

import pytest

from ullage.access.limits import TenantLimits, read_limits
from ullage.base.errors import ConfigError


def limits_of(tmp_path, text):
    path = tmp_path / "limits.toml"
    path.write_text(text, "utf-8")
    return read_limits(path)


def test_a_tenant_has_its_own_section_or_the_default_and_never_a_mixture(tmp_path):
    limits = limits_of(
        tmp_path,
        "[default]\nrequests_per_minute = 60\n"
        "[tenants.acme]\ntokens_per_day = 1_000\nweight = 2\npriority = -1\n"
        '[tenants."甲 乙"]\nconcurrent_requests = 1\n',
    )
    assert limits.of("acme") == TenantLimits(tokens_per_day=1000, weight=2, priority=-1)
    assert limits.of("甲 乙") == TenantLimits(concurrent_requests=1)
    assert limits.of("") == limits.of("nobody") == TenantLimits(requests_per_minute=60)
    assert limits.has_quotas


def test_an_empty_file_limits_nobody(tmp_path):
    limits = limits_of(tmp_path, "")
    assert limits.of("acme") == TenantLimits()
    assert not limits.has_quotas


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[default]\nrequest_per_minute = 1", "did you mean requests_per_minute"),
        ("[tenant.acme]\nweight = 1", "did you mean tenants"),
        ("[default]\nrequests_per_minute = 0", "at least 1, got 0"),
        ("[default]\nrequests_per_minute = true", "at least 1, got True"),
        ("[default]\ntokens_per_minute = 1.5", "whole number"),
        ("[tenants.a]\nweight = 0", r"\[tenants.a\] weight must be a number above 0"),
        ("[tenants.a]\nweight = nan", "above 0"),
        ("[tenants.a]\npriority = 1.0", "whole number"),
        ("tenants = 3", "must be tables"),
        ("[tenants]\na = 3", "must be a table"),
        ("[default", "is not TOML"),
    ],
)
def test_a_mistake_is_named(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        limits_of(tmp_path, text)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="can't read the limits file"):
        read_limits(tmp_path / "none.toml")


def test_the_smallest_bound_is_what_a_request_can_be_given():
    assert TenantLimits(tokens_per_minute=10, tokens_per_month=5).most_tokens == 5
    assert TenantLimits(requests_per_minute=3).most_tokens is None
