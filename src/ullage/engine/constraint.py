"""What an output must match, as its request says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ConstraintKind = Literal["json_object", "json_schema", "regex", "grammar"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A language that the generated text must belong to."""

    kind: ConstraintKind
    text: str = ""
    """The JSON schema, the regular expression or the Lark grammar; empty for ``json_object``."""
