"""What an output must match, as its request says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Constraint:
    """A language that the generated text must belong to."""

    kind: Literal["json_object", "json_schema", "regex", "grammar"]
    text: str = ""
    """The JSON schema, the regular expression or the Lark grammar; empty for ``json_object``."""
