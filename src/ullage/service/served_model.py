"""The model as clients see it: its names, its tokenizer and template, and what holds when a request says nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ullage import __version__

if TYPE_CHECKING:
    from ullage.models.chat_template import ChatTemplate
    from ullage.models.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling when a request leaves it open: the API's own defaults, unless the model's files recommend others."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    completion_max_tokens: int = 16
    """For ``/v1/completions``. A chat answer may go on to the end of the context."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    names: tuple[str, ...]
    """What requests may call it; the first is its own name, the others are aliases."""
    created: int
    """Unix seconds."""
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    """None for a base model: it can complete, not chat."""
    defaults: GenerationDefaults = field(default_factory=GenerationDefaults)
    owned_by: str = "ullage"
    system_fingerprint: str = f"ullage-{__version__}"
    """Equal fingerprint, seed and request: equal answer."""
