"""GET /v1/usage: what a tenant may use, and what of it is used up."""

from __future__ import annotations

from dataclasses import asdict

from ullage.access.limits import TenantLimits
from ullage.service.service import Service


async def usage(service: Service, tenant: str) -> dict[str, object]:
    """Counts are null where nothing is limited, for then nothing is counted.

    :raises AccessStoreError: the counts can't be read now
    """
    if service.allowances is None:
        return {"tenant": tenant, "limits": asdict(TenantLimits()), "minute": None, "tokens_used": None}
    standing, periods = await service.allowances.standing(tenant)
    return {
        "tenant": tenant,
        "limits": asdict(service.allowances.of(tenant)),
        "minute": {"requests_left": standing.requests_left, "tokens_left": standing.tokens_left},
        "tokens_used": periods,
    }
