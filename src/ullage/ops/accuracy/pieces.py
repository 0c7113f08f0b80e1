"""The text: read, turned into token ids, cut into pieces that engines see as sequences of their own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import ullage
from ullage.base.errors import ConfigError
from ullage.models.spec import ModelSpec
from ullage.models.tokenizer import Tokenizer

REPOSITORY_TEXTS = ("LICENSE", "ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "README.zh-CN.md")
"""Read in this order when no text is given, as far as tokens are wanted."""


@dataclass(frozen=True, slots=True)
class Text:
    names: tuple[str, ...]
    content: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Pieces:
    """The token ids of each piece, BOS included. A row is one position; rows are counted through all pieces."""

    token_ids: tuple[tuple[int, ...], ...]
    num_text_tokens: int
    """Tokens of the whole text, of which the pieces hold the first."""

    @property
    def num_rows(self) -> int:
        return sum(len(piece) for piece in self.token_ids)

    @property
    def first_rows(self) -> list[int]:
        """Row of each piece's first position."""
        return [0, *accumulate(len(piece) for piece in self.token_ids)][:-1]

    @property
    def sha256(self) -> str:
        """Of the token ids as JSON: equal digests mean that the same was measured."""
        return hashlib.sha256(json.dumps(self.token_ids, separators=(",", ":")).encode()).hexdigest()

    @property
    def longest(self) -> int:
        return max(len(piece) for piece in self.token_ids)

    def next_token(self, piece: int, position: int) -> int | None:
        """None at the end of a piece."""
        token_ids = self.token_ids[piece]
        return token_ids[position + 1] if position + 1 < len(token_ids) else None


def read_text(paths: Sequence[Path]) -> Text:
    """The files one after another; none given: those of the repository that this package lies in.

    :raises ConfigError: no such file, not text in UTF-8, or no repository around the package
    """
    if not paths:
        root = Path(ullage.__file__).parents[2]
        paths = [root / name for name in REPOSITORY_TEXTS]
        if not all(path.is_file() for path in paths):
            raise ConfigError(
                "this package doesn't lie in its repository, so there is no text", hint="give --text FILE"
            )
    return Text(tuple(path.name for path in paths), "\n".join(_read(path) for path in paths))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"can't read the text {path}: {error.strerror}", hint="give another --text FILE") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text in UTF-8", hint="convert it, with iconv say") from None


def cut(text: Text, tokenizer: Tokenizer, spec: ModelSpec, *, num_rows: int, piece_rows: int) -> Pieces:
    """The text's first tokens in pieces of ``piece_rows`` rows, the last one shorter where it must be. Each starts
    with BOS where the model wants one, which is a row too.

    :raises ConfigError: the text has fewer tokens than that, or a piece is longer than the model's context
    """
    if piece_rows > spec.max_position:
        raise ConfigError(
            f"pieces of {piece_rows} tokens exceed the {spec.max_position} that {spec.name} was trained for",
            hint="use shorter --piece-tokens",
        )
    token_ids = tokenizer.encode(text.content, add_special_tokens=False)
    start = [tokenizer.bos_token_id] if tokenizer.add_bos and tokenizer.bos_token_id is not None else []
    if piece_rows < len(start) + 2:
        raise ConfigError(f"pieces of {piece_rows} tokens are too short", hint="use --piece-tokens 512")
    pieces: list[tuple[int, ...]] = []
    taken = rows = 0
    while rows < num_rows:
        wanted = min(piece_rows, num_rows - rows) - len(start)
        piece = token_ids[taken : taken + wanted]
        if len(piece) < wanted:
            raise ConfigError(
                f"the text has {len(token_ids)} tokens, too few for {num_rows}",
                hint="give a longer --text, or fewer --tokens",
            )
        pieces.append((*start, *piece))
        taken += wanted
        rows += len(pieces[-1])
    return Pieces(tuple(pieces), len(token_ids))
