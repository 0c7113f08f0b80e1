"""The model as clients see it: its names, its tokenizer and template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ullage import __version__

if TYPE_CHECKING:
    from ullage.models.chat_template import ChatTemplate
    from ullage.models.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ServedModel:
    names: tuple[str, ...]
    """What requests may call it; the first is its own name, the others are aliases."""
    created: int
    """Unix seconds."""
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    """None for a base model: it can complete, not chat."""
    owned_by: str = "ullage"
    system_fingerprint: str = f"ullage-{__version__}"
    """Equal fingerprint, seed and request: equal answer."""
