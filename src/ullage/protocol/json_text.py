"""JSON in and out: strict both ways (RFC 8259), and never an input echoed back in an error."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import islice
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json

from ullage.base.errors import InvalidRequestError

Model = TypeVar("Model", bound=BaseModel)

MAX_ERRORS_SHOWN = 3

MAX_JSON_VALUES = 1 << 18
MAX_JSON_MEMBERS = 1 << 15
"""Values in one body, and members of objects, which take ten times as long. Parsing holds the interpreter, a second for
each few million values, and streams stand still."""

_MEMBER = re.compile(rb'(?<!\\)"[ \t\r\n]*:|\\\\"[ \t\r\n]*:')
"""Where a key ends; a backslash before the quote makes it a text's, two make it the key's own end."""


def encode_json(payload: Mapping[str, object]) -> bytes:
    """Compact UTF-8. NaN and infinity are bugs here, not text."""
    return json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def parse_json_object(body: bytes) -> dict[str, object]:
    """The object in a request body.

    Malformed text, NaN, lone surrogates, a byte-order mark, nesting deeper than 200 and numbers longer than 4300
    digits are all refused, and so are more than ``MAX_JSON_VALUES`` values or ``MAX_JSON_MEMBERS`` members. Values are
    counted by their commas and opening brackets; the few in texts count too, but a text with so many has about as many
    tokens. Members are counted by quotes before colons, but for those that a text has escaped.

    :raises InvalidRequestError: says where the text stops being JSON
    """
    if sum(map(body.count, (b",", b"[", b"{"))) > MAX_JSON_VALUES:
        raise InvalidRequestError(f"the body holds more than {MAX_JSON_VALUES} JSON values")
    if body.count(b":") > MAX_JSON_MEMBERS and any(islice(_MEMBER.finditer(body), MAX_JSON_MEMBERS, None)):
        raise InvalidRequestError(f"the objects in the body have more than {MAX_JSON_MEMBERS} members")
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequestError("the body must be a JSON object")
    return value


def validate(model: type[Model], fields: Mapping[str, object]) -> Model:
    """The request that ``fields`` describe, types taken strictly: ``"10"`` is no number.

    :raises InvalidRequestError: ``param`` is the path of the first field at fault, such as ``messages[0].role``
    """
    try:
        return model.model_validate(fields, strict=True)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [f"{_path(detail)}: {detail['msg']}" for detail in details[:MAX_ERRORS_SHOWN]]
    if len(details) > MAX_ERRORS_SHOWN:
        lines.append(f"and {len(details) - MAX_ERRORS_SHOWN} more")
    raise InvalidRequestError("; ".join(lines), param=_path(details[0]))


def _path(detail: ErrorDetails) -> str:
    """``("messages", 0, "role")`` as ``messages[0].role``. Keys come from the client, so each is cut short."""
    path = ""
    for part in detail["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part[:50]}" if path else part[:50]
    return path
