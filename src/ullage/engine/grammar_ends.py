"""Whether a grammar has a text that ends: one whose rules only lead back to themselves keeps a model for ever."""

from __future__ import annotations

import re
from itertools import pairwise

_RULE = re.compile(r"^[ \t]*[?!]?([\w-]+)[^:\n\"/]*:", re.MULTILINE)
_PART = re.compile(
    r'"(?:\\.|[^"\\])*"i?|/(?:\\.|[^/\\\n])+/[a-z]*|(?P<comment>//[^\n]*|\#[^\n]*)|(?P<special>[%@][\w-]+|<[^>\n]*>)'
    r"|(?P<name>[A-Za-z_][\w-]*)|(?P<mark>[()\[\]|?*+~]|\{\d*,?\d*\}|\.\.|\d+)"
)

Parts = list[str]


def has_ending_text(grammar: str) -> bool:
    """False when ``start`` has no text that ends. Of what isn't understood, all counts as possible.

    The least fixed point: no rule ends until one of its alternatives is found whose rules all do.
    """
    rules = _rules(grammar)
    ending: set[str] = set()
    while True:
        found = {name for name, parts in rules.items() if name not in ending and _ends(parts, rules, ending)}
        if not found:
            return "start" not in rules or "start" in ending
        ending |= found


def _rules(grammar: str) -> dict[str, Parts]:
    """The parts of each rule: names as they are, marks, and ``""`` for what is text by itself."""
    heads = list(_RULE.finditer(grammar))
    bodies = [grammar[a.end() : b.start()] for a, b in pairwise(heads)]
    bodies += [grammar[head.end() :] for head in heads[-1:]]
    return {head[1]: _parts(body) for head, body in zip(heads, bodies, strict=True)}


def _parts(body: str) -> Parts:
    body = re.sub(r"%json\s*\{.*\}", '""', body, flags=re.DOTALL)
    matches = (match for match in _PART.finditer(body) if not match["comment"])
    return [match["name"] or match["mark"] or "" for match in matches]


def _ends(parts: Parts, rules: dict[str, Parts], ending: set[str]) -> bool:
    """Reads one body: groups are put on a stack as (an alternative so far ends, this alternative ends)."""
    stack = [(False, True)]
    last = True
    for part, after in zip(parts, [*parts[1:], ""], strict=True):
        before, this = stack[-1]
        if part in ("(", "["):
            stack.append((False, True))
            continue
        if part == "|":
            stack[-1] = (before or this, True)
            continue
        if part in (")", "]") and len(stack) > 1:
            stack.pop()
            last = before or this or part == "]"
            before, this = stack[-1]
        elif part in rules:
            last = part in ending
        else:
            continue
        stack[-1] = (before, this and (last or after in ("?", "*") or after.startswith(("{0", "{,"))))
    return any(before or this for before, this in stack[:1])
