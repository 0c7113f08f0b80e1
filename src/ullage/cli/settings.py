"""What each command can be told, and the settings that only the command line has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ullage.access.config import AccessConfig
from ullage.base.config import ENV_PREFIX, setting, settings_of
from ullage.base.errors import ConfigError
from ullage.engine.build import EngineOptions
from ullage.gateway.config import GatewayConfig
from ullage.service.config import ServiceConfig

if TYPE_CHECKING:
    from ullage.engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How clients see the model."""

    served_model_name: str | None = setting(
        None, "What requests call the model; more names after commas.", shown_default="as MODEL, without its folder"
    )

    def names(self, model: str) -> tuple[str, ...]:
        """:raises ConfigError: no name comes out"""
        if self.served_model_name is None:
            path = os.path.abspath(Path(model).expanduser())  # ``.`` has a name too
            names = [Path(path).name.removesuffix(".gguf")]
        else:
            names = [name.strip() for name in self.served_model_name.split(",")]
        if not all(names):
            source = repr(model) if self.served_model_name is None else "--served-model-name"
            raise ConfigError(
                f"{source} gives the model an empty name", hint="name it like --served-model-name tiny,other"
            )
        return tuple(names)


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """What of ``SamplingParams`` the command line offers."""

    max_tokens: int = setting(256, "New tokens at most.", at_least=1)
    temperature: float = setting(0.7, "0 always takes the likeliest token; up to 2.")
    top_p: float = setting(1.0, "Only the likeliest tokens that reach this probability together; above 0, up to 1.")
    top_k: int = setting(0, "Only this many likeliest tokens; 0 is all.", at_least=0)

    def params(self) -> SamplingParams:
        from ullage.engine.sampling_params import SamplingParams

        return SamplingParams(**{name: getattr(self, name) for name in settings_of(SamplingOptions)})


# Of each command: heading in the help -> class.
SERVE: Mapping[str, type] = {
    "Model": ModelOptions,
    "Engine": EngineOptions,
    "Service": ServiceConfig,
    "Access": AccessConfig,
}
GENERATE: Mapping[str, type] = {"Sampling": SamplingOptions, "Engine": EngineOptions}
BENCH: Mapping[str, type] = {"Engine": EngineOptions}
GATEWAY: Mapping[str, type] = {"Gateway": GatewayConfig}

EVERY_NAME = frozenset(
    env_name.removeprefix(ENV_PREFIX).lower()
    for sections in (SERVE, GENERATE, BENCH, GATEWAY)
    for cls in sections.values()
    for info in settings_of(cls).values()
    for env_name in info.env_names
)
"""The environment is one for all commands: a variable that another command knows is no typing error."""
