"""Follows the JSON object of one call, ``{"name": ..., "arguments": {...}}``, while it comes."""

from __future__ import annotations

import json
from typing import Literal

_WHITE_SPACE = " \t\r\n"

State = Literal["before", "key or end", "key", "colon", "value", "comma or end", "done", "failed"]


class CallScanner:
    """Fed one character after another. The arguments are passed on as the model wrote them, to the letter.

    :param arguments_keys: the names that the form knows for the arguments
    """

    def __init__(self, arguments_keys: tuple[str, ...] = ("arguments", "parameters")) -> None:
        self.state: State = "before"
        self.name: str | None = None
        self._arguments_keys = arguments_keys
        self._has_arguments = False
        self._key = ""
        self._token = ""
        """The key or value that is being read."""
        self._depth = 0
        self._in_string = self._escaped = False
        self._held = ""
        """Arguments that aren't passed on yet: the name comes first."""

    @property
    def begun(self) -> bool:
        """It is a call: the name is known, and so is that what follows are its arguments."""
        return self.name is not None and (self._has_arguments or self.state == "done")

    def take_arguments(self) -> str:
        """What has come since the last time, once the call has ``begun``."""
        if not self.begun:
            return ""
        taken, self._held = self._held, ""
        return taken

    def push(self, char: str) -> None:
        if self.state == "key":
            self._push_key(char)
        elif self.state == "value":
            self._push_value(char)
        elif char in _WHITE_SPACE:
            return
        else:
            self._push_mark(char)

    def _push_mark(self, char: str) -> None:
        match self.state, char:
            case "before", "{":
                self.state = "key or end"
            case "key or end", '"':
                self.state, self._token = "key", '"'
            case "colon", ":":
                self.state, self._token = "value", ""
                self._depth, self._in_string, self._escaped = 0, False, False
            case "comma or end", ",":
                self.state = "key or end"
            case (("comma or end" | "key or end"), "}"):
                self._end()
            case _:
                self.state = "failed"

    def _push_key(self, char: str) -> None:
        self._token += char
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._key = _text(self._token) or ""
            self.state = "colon"

    def _push_value(self, char: str) -> None:
        if not self._token and char in _WHITE_SPACE:
            return
        scalar = self._depth == 0 and not self._in_string
        if self._token and scalar and char in _WHITE_SPACE + ",}":  # behind a number or a word
            self._end_value()
            self.push(char)
            return
        self._token += char
        if self._passes_on and self._token[0] == "{":
            self._has_arguments = True
            self._held += char
        if self._escaped:
            self._escaped = False
        elif self._in_string:
            self._escaped = char == "\\"
            self._in_string = char != '"'
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
        if self._depth < 0:
            self.state = "failed"
        elif self._depth == 0 and not self._in_string and char in '}]"':
            self._end_value()

    @property
    def _passes_on(self) -> bool:
        return self._key in self._arguments_keys

    def _end_value(self) -> None:
        self.state = "comma or end"
        if self._key == "name" and self.name is None:
            self.name = _text(self._token)
            if not self.name:
                self.state = "failed"
        elif self._passes_on and not self._has_arguments and self._token != "null":
            # Some models write the arguments as a text that holds the object.
            self._has_arguments = True
            self._held += _text(self._token) or self._token

    def _end(self) -> None:
        self.state = "done" if self.name is not None else "failed"
        if not self._has_arguments:
            self._held = "{}"


def _text(token: str) -> str | None:
    try:
        value = json.loads(token)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
