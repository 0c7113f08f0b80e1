"""The fields that say what an output must match: OpenAI's ``response_format``, and vLLM's and our own beside it.

All of them come down to one ``AskedConstraint``; a request may ask for one at most.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ullage.base.errors import InvalidRequestError

ConstraintKind = Literal["json_object", "json_schema", "regex", "grammar"]

Schema = dict[str, Any] | bool
MAX_CHOICES = 10_000


@dataclass(frozen=True, slots=True)
class AskedConstraint:
    """What the text must match, and the field that says so."""

    kind: ConstraintKind
    text: str
    param: str


class _Strict(BaseModel):
    """Here an unknown key would change what is allowed: it is refused, not ignored."""

    model_config = ConfigDict(extra="forbid")


class TextFormat(_Strict):
    type: Literal["text"]


class JsonObjectFormat(_Strict):
    type: Literal["json_object"]


class JsonSchema(_Strict):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    json_schema: Annotated[Schema, Field(alias="schema")] = {}
    strict: bool | None = None
    """Without effect: a schema is always followed in full, or refused."""


class JsonSchemaFormat(_Strict):
    type: Literal["json_schema"]
    json_schema: JsonSchema


class RegexFormat(_Strict):
    """Extension."""

    type: Literal["regex"]
    regex: str


class GrammarFormat(_Strict):
    """Extension: a Lark grammar, as llguidance reads it."""

    type: Literal["grammar"]
    grammar: str


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat | RegexFormat | GrammarFormat, Field(discriminator="type")
]

Choices = Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICES)]


class StructuredOutputs(_Strict):
    """vLLM's field; exactly one of its keys."""

    json_: Annotated[Schema | str | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: Literal[True] | None = None


def constraint_of_format(format_: ResponseFormat) -> AskedConstraint | None:
    """None for plain text."""
    match format_:
        case JsonObjectFormat():
            return AskedConstraint("json_object", "", "response_format")
        case JsonSchemaFormat():
            schema = json_text(format_.json_schema.json_schema)
            return AskedConstraint("json_schema", schema, "response_format.json_schema.schema")
        case RegexFormat():
            return AskedConstraint("regex", format_.regex, "response_format.regex")
        case GrammarFormat():
            return AskedConstraint("grammar", format_.grammar, "response_format.grammar")
        case _:
            return None


def constraint_of_structure(structure: StructuredOutputs) -> AskedConstraint:
    """:raises InvalidRequestError: not exactly one key"""
    values = {
        "json": structure.json_,
        "regex": structure.regex,
        "choice": structure.choice,
        "grammar": structure.grammar,
        "json_object": structure.json_object,
    }
    asked = constraints_by_name(values, "structured_outputs.")
    if len(asked) != 1:
        raise InvalidRequestError("structured_outputs needs exactly one of its keys", param="structured_outputs")
    return asked[0]


def constraints_by_name(values: Mapping[str, object], prefix: str) -> list[AskedConstraint]:
    """:param values: ``json``, ``regex``, ``choice``, ``grammar``, ``json_object`` and what was given; None: nothing"""
    asked = []
    for name, value in values.items():
        param = prefix + name
        if value is None:
            continue
        if name == "json":
            asked.append(AskedConstraint("json_schema", value if isinstance(value, str) else json_text(value), param))
        elif name == "json_object":
            asked.append(AskedConstraint("json_object", "", param))
        elif name == "choice":
            assert isinstance(value, list)
            asked.append(AskedConstraint("grammar", "start: " + " | ".join(map(json_text, value)), param))
        else:
            assert isinstance(value, str)
            asked.append(AskedConstraint("regex" if name == "regex" else "grammar", value, param))
    return asked


def json_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
