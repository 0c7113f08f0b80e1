"""GET /v1/models and GET /v1/models/{id}."""

from __future__ import annotations

from starlette.types import Scope

from ullage.access.tenant import may_use
from ullage.protocol.models import ModelCard, ModelList
from ullage.service.service import Service


def list_models(service: Service, scope: Scope) -> ModelList:
    """Those that the request's key may use."""
    names = [name for name in service.model.names if may_use(scope, name)]
    return ModelList(object="list", data=[_card(service, name) for name in names])


def show_model(service: Service, name: str, scope: Scope) -> ModelCard:
    """
    :raises ModelNotFoundError: this server doesn't serve it
    :raises PermissionDeniedError: the request's key may not use it
    """
    service.check_model(name, scope)
    return _card(service, name)


def _card(service: Service, name: str) -> ModelCard:
    return ModelCard(
        id=name,
        object="model",
        created=service.model.created,
        owned_by=service.model.owned_by,
        max_model_len=service.engine.max_model_len,
    )
