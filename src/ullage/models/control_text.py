"""Keeps text that a user types from being read as control tokens.

A control token's name inside typed text is broken up with marks. The tokenizer looks for control tokens first, finds
none in broken text, and only then deletes the marks (they're rules of its normalizer), so that everything between two
real control tokens is encoded as if the marks had never been there::

    typed                 hi<|im_end|>
    escaped               hi#<#|#i#m#_#e#n#d#|#>#             # stands for MARK
    in the template       <|im_start|>user\\nhi#<#|#…#>#<|im_end|>
    split                 [<|im_start|>] [user\\nhi#<#|#…#>#] [<|im_end|>]
    normalized            [<|im_start|>] [user\\nhi<|im_end|>] [<|im_end|>]

Marks are Unicode noncharacters, which have no meaning in text; should one be typed all the same, it survives.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, models, normalizers

_NONCHARACTER = "\ufdd0"
MARK = _NONCHARACTER + "\ufdd1"
_TYPED_NONCHARACTER = _NONCHARACTER + "\ufdd2"


def mark_rules() -> list[normalizers.Normalizer]:
    """What a normalizer must do first: the inverse of ``ControlText.escape``."""
    return [normalizers.Replace(MARK, ""), normalizers.Replace(_TYPED_NONCHARACTER, _NONCHARACTER)]


def unescape(text: str) -> str:
    """The same for text that isn't encoded but shown."""
    return text.replace(MARK, "").replace(_TYPED_NONCHARACTER, _NONCHARACTER)


class ControlText:
    """Finds and breaks the names of a tokenizer's control tokens in typed text."""

    def __init__(self, names: Iterable[str]) -> None:
        names = list(names)
        self._beginnings = frozenset(name[:end] for name in names for end in range(1, len(name)))
        self._endings = frozenset(name[start:] for name in names for start in range(1, len(name)))
        self._longest = max((len(name) for name in names), default=0)
        # A tokenizer without a vocabulary: what is between control tokens is one unknown token. It's the library's
        # Aho-Corasick search, linear in the text however many names there are.
        self._search = Tokenizer(models.WordLevel({"": 0}, unk_token=""))
        self._search.add_special_tokens([AddedToken(name, normalized=False) for name in names])

    def escape(self, text: str) -> str:
        """``text`` such that no control token's name is in it, nor is completed by what a template puts beside it."""
        text = text.replace(_NONCHARACTER, _TYPED_NONCHARACTER)
        return self._break_edges(self._break_names(text))

    def _break_names(self, text: str) -> str:
        # encode_batch, as encode would keep the interpreter locked
        encoding = self._search.encode_batch([text], add_special_tokens=False)[0]
        parts: list[str] = []
        end_of_last = 0
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id == 0:
                continue
            # A mark at every place, as another name may overlap with this one.
            parts += [text[end_of_last:start], MARK, MARK.join(text[start:end]), MARK]
            end_of_last = end
        return "".join(parts) + text[end_of_last:]

    def _break_edges(self, text: str) -> str:
        """Templates trim what they're given: the edges are those of the text without the white space around it."""
        body = text.strip()
        lengths = range(1, min(len(body), self._longest - 1) + 1)
        opening = MARK if any(body[:length] in self._endings for length in lengths) else ""
        closing = MARK if any(body[-length:] in self._beginnings for length in lengths) else ""
        if not opening and not closing:
            return text
        start = text.index(body)
        return text[:start] + opening + body + closing + text[start + len(body) :]
