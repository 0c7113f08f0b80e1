"""GET /v1/models and GET /v1/models/{id}."""

from __future__ import annotations

from ullage.protocol.models import ModelCard, ModelList
from ullage.service.service import Service


def list_models(service: Service) -> ModelList:
    return ModelList(object="list", data=[_card(service, name) for name in service.model.names])


def show_model(service: Service, name: str) -> ModelCard:
    """:raises ModelNotFoundError: this server doesn't serve it"""
    service.check_model(name)
    return _card(service, name)


def _card(service: Service, name: str) -> ModelCard:
    return ModelCard(
        id=name,
        object="model",
        created=service.model.created,
        owned_by=service.model.owned_by,
        max_model_len=service.engine.max_model_len,
    )
