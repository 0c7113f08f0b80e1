"""Tenants' salts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ullage.access.keys import ApiKey
from ullage.access.tenant import cache_salt, tenant_of

tenants = st.text(min_size=1)


@given(tenants, st.text(), tenants, st.text())
def test_salts_are_equal_only_for_equal_tenants_and_equal_salts(tenant, salt, other_tenant, other_salt):
    same = (tenant, salt) == (other_tenant, other_salt)
    assert (cache_salt(tenant, salt) == cache_salt(other_tenant, other_salt)) == same


def test_the_border_between_tenant_and_salt_counts():
    assert cache_salt("ab", "c") != cache_salt("a", "bc")
    assert cache_salt("a", cache_salt("b", "")) != cache_salt("b", "")


def test_the_tenant_is_that_of_the_key():
    assert tenant_of({"api_key": ApiKey("1", "acme", "", ("inference",), 0.0, None, None)}) == "acme"
    assert tenant_of({}) == tenant_of({"api_key": None}) == ""
