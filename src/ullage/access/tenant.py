"""Whose request it is, once the gate has let it in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ullage.access.keys import ApiKey
from ullage.base.errors import PermissionDeniedError

SCOPE_NAME = "api_key"


def tenant_of(scope: Mapping[str, Any]) -> str:
    """The tenant of an ASGI scope; empty where no keys are asked for."""
    key: ApiKey | None = scope.get(SCOPE_NAME)
    return "" if key is None else key.tenant


def may_use(scope: Mapping[str, Any], model: str) -> bool:
    """Whether the key of an ASGI scope opens this model."""
    key: ApiKey | None = scope.get(SCOPE_NAME)
    return key is None or key.may_use(model)


def check_may_use(scope: Mapping[str, Any], model: str) -> None:
    """:raises PermissionDeniedError: the key doesn't open this model, whether or not there is one of that name"""
    if not may_use(scope, model):
        raise PermissionDeniedError("this API key may not use that model", param="model")


def cache_salt(tenant: str, asked_salt: str) -> str:
    """The salt of a tenant's cached prefixes. The tenant stands first with its length, so that no salt a client asks
    for can make it another tenant's."""
    return f"tenant:{len(tenant)}:{tenant}:{asked_salt}" if tenant else asked_salt
