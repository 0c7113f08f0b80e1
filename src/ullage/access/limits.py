"""What each tenant may use, and the file that says so.

::

    [default]                    # every tenant that has no section of its own
    requests_per_minute = 60
    concurrent_requests = 4

    [tenants.acme]               # nothing is inherited: a section says all of it
    tokens_per_minute = 100_000
    tokens_per_day = 5_000_000
    weight = 2.0                 # twice the share of tokens while tenants compete
    priority = -1                # its requests go before those of class 0
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from ullage.base.config import check_known_names
from ullage.base.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """None: no limit of that kind."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Prompt and generated tokens, as ``usage`` counts them."""
    concurrent_requests: int | None = None
    tokens_per_day: int | None = None
    """A day and a month are those of UTC."""
    tokens_per_month: int | None = None
    weight: float = 1.0
    """Share of the engine's tokens against other tenants that wait."""
    priority: int = 0
    """Class of urgency: a lower number goes first, whoever's it is."""

    @property
    def has_quota(self) -> bool:
        return self.tokens_per_day is not None or self.tokens_per_month is not None

    @property
    def most_tokens(self) -> int | None:
        """More than this no request can ever be given."""
        bounds = (self.tokens_per_minute, self.tokens_per_day, self.tokens_per_month)
        return min((bound for bound in bounds if bound is not None), default=None)


@dataclass(frozen=True, slots=True)
class Limits:
    """All of a limits file."""

    default: TenantLimits = TenantLimits()
    tenants: Mapping[str, TenantLimits] = field(default_factory=dict)

    def of(self, tenant: str) -> TenantLimits:
        return self.tenants.get(tenant, self.default)

    @property
    def has_quotas(self) -> bool:
        return any(limits.has_quota for limits in (self.default, *self.tenants.values()))


def read_limits(path: Path) -> Limits:
    """:raises ConfigError: not readable, not TOML, an unknown name, or a value that can't be honoured"""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"can't read the limits file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the limits file {path} is not TOML: {error}") from error
    check_known_names(document, ("default", "tenants"), where=str(path))
    tenants = document.get("tenants", {})
    if not isinstance(tenants, dict):
        raise ConfigError(f"{path}: tenants must be tables", hint="like [tenants.acme]")
    return Limits(
        default=_tenant_limits(document.get("default", {}), f"{path}: [default]"),
        tenants={name: _tenant_limits(table, f"{path}: [tenants.{name}]") for name, table in tenants.items()},
    )


def _tenant_limits(table: object, where: str) -> TenantLimits:
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table")
    check_known_names(table, [f.name for f in fields(TenantLimits)], where=where)
    for name, value in table.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if name == "weight":
            fits, wanted = is_number and value > 0, "a number above 0"
        elif name == "priority":
            fits, wanted = is_number and isinstance(value, int), "a whole number"
        else:
            fits, wanted = is_number and isinstance(value, int) and value >= 1, "a whole number of at least 1"
        if not fits:
            raise ConfigError(f"{where} {name} must be {wanted}, got {value!r}")
    return TenantLimits(**table)
