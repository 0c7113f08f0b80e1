"""Well-known models: the part of each published ``config.json`` that memory depends on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ullage.plan.catalogue.names import key_of, similar

_CONFIGS = Path(__file__).parent / "configs"
_IGNORED = re.compile(r"^.*/|^meta-|[-_ :](instruct|chat|it|hf|base|bf16)\b")
"""What a name may have or lack: who published it, and for what it was tuned."""


@dataclass(frozen=True, slots=True)
class CataloguedModel:
    """One model.

    :ivar name: as its publisher writes it
    :ivar aliases: other names of the same configuration
    :ivar source: address of the configuration
    :ivar copy: address of the copy that the figures were read from; None: not known, or the source itself
    :ivar note: how the entry differs from the publisher's file; empty: only in fields that no memory depends on
    :ivar parameters: as published, rounded as there; None: no count that is precise enough
    :ivar parameters_source: where the count is published
    :ivar config: the configuration, with its published names and nesting
    """

    name: str
    aliases: tuple[str, ...]
    source: str
    copy: str | None
    note: str
    parameters: int | None
    parameters_source: str | None
    config: Mapping[str, object]


def find_model(name: str) -> Mapping[str, object] | None:
    """The ``config.json`` of a well-known model, for ``architecture_of``; None: not in the catalogue.

    :param name: in any case, with or without publisher and suffixes such as ``-Instruct``
    """
    found = _names().get(key_of(name, ignored=_IGNORED))
    return None if found is None else catalogued_models()[found].config


def model_names() -> tuple[str, ...]:
    """Every model's name, as its publisher writes it, in alphabetical order."""
    return tuple(sorted(catalogued_models(), key=str.lower))


def similar_models(name: str) -> tuple[str, ...]:
    """Names near to one that wasn't found, nearest first."""
    return similar(name, _names(), ignored=_IGNORED)


@cache
def catalogued_models() -> Mapping[str, CataloguedModel]:
    """Every entry by its name. Read at the first call."""
    entries = [json.loads(path.read_bytes()) for path in sorted(_CONFIGS.glob("*.json"))]
    models = [
        CataloguedModel(
            entry["name"],
            tuple(entry.get("aliases", ())),
            entry["source"],
            entry.get("copy"),
            entry.get("note", ""),
            entry.get("parameters"),
            entry.get("parameters_source"),
            entry["config"],
        )
        for entry in entries
    ]
    return {model.name: model for model in models}


@cache
def _names() -> Mapping[str, str]:
    return {
        key_of(spelling, ignored=_IGNORED): model.name
        for model in catalogued_models().values()
        for spelling in (model.name, *model.aliases)
    }
