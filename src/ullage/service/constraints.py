"""Checks what an output must match, before the engine hears of it: what can't be followed in full is refused."""

from __future__ import annotations

import re

from ullage.base.errors import InvalidRequestError
from ullage.engine.constraint import Constraint
from ullage.engine.grammars import GrammarCompiler
from ullage.protocol.structured_output import AskedConstraint

_NOT_FOLLOWED = {
    "token ids": re.compile(r"<\[|<\|"),
    "the options temperature, max_tokens and stop": re.compile(
        r"\[[^]\n]*\b(?:temperature|max_tokens|stop)\b[^]\n]*\][^:\n]*:"
    ),
    "x-guidance": re.compile(r"x-guidance"),
}
"""What the grammar language has and a request may not use."""


def checked_constraint(compiler: GrammarCompiler, asked: AskedConstraint) -> Constraint:
    """Takes up to a second: not on the event loop.

    :param compiler: of any vocabulary that can spell everything
    :raises InvalidRequestError: not valid, not supported, too large, or no text matches; names the field
    """
    if asked.kind == "grammar":
        for what, pattern in _NOT_FOLLOWED.items():
            if pattern.search(asked.text):
                raise InvalidRequestError(f"{asked.param} can't be honoured: {what} can't be used", param=asked.param)
    constraint = Constraint(asked.kind, asked.text)
    try:
        compiler.matcher(constraint)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{asked.param} can't be honoured: {error.message}", param=asked.param) from None
    return constraint
