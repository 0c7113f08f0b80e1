"""Whose request it is, once the gate has let it in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ullage.access.keys import ApiKey

SCOPE_NAME = "api_key"


def tenant_of(scope: Mapping[str, Any]) -> str:
    """The tenant of an ASGI scope; empty where no keys are asked for."""
    key: ApiKey | None = scope.get(SCOPE_NAME)
    return "" if key is None else key.tenant


def cache_salt(tenant: str, asked_salt: str) -> str:
    """The salt of a tenant's cached prefixes. The tenant stands first with its length, so that no salt a client asks
    for can make it another tenant's."""
    return f"tenant:{len(tenant)}:{tenant}:{asked_salt}" if tenant else asked_salt
