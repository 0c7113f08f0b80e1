"""Text to token ids and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, normalizers

from ullage.base.errors import InvalidRequestError, ModelFileError
from ullage.models.control_text import ControlText, mark_rules
from ullage.models.gguf_tokenizer import parts_from_gguf
from ullage.models.hf_tokenizer import parts_from_folder
from ullage.models.tokenizer_parts import SPACE_SYMBOL, TokenizerParts, gpt2_bytes

_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """One model's tokenizer. Safe to use from several threads; the interpreter isn't locked while a text is encoded.

    Two kinds of text go in. Typed text (``encode``) never becomes a control token, whatever it says. Rendered text
    (``encode_rendered``) is what a chat template made: there the names of control tokens are control tokens, except
    where typed text went through ``escape`` before it was put in.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self._backend = parts.backend
        rules = mark_rules() + ([self._backend.normalizer] if self._backend.normalizer else [])
        self._backend.normalizer = normalizers.Sequence(rules)
        self._control_text = ControlText(parts.control_tokens)
        self._control_names = {token_id: name for name, token_id in parts.control_tokens.items()}
        self._added_token_ids = frozenset(self._backend.get_added_tokens_decoder())
        self._scheme = parts.scheme
        self._gpt2_bytes = gpt2_bytes()
        self.strip_leading_space = parts.strip_leading_space
        """Whether a text's first space isn't the text's own (see ``decode``)."""
        self.vocab_size = parts.vocab_size
        """Token ids are below this; a model may have more rows, as padding."""
        self.control_tokens: Mapping[str, int] = MappingProxyType(dict(parts.control_tokens))
        """Special tokens by name; ordinary tokens that were merely added to the vocabulary aren't here."""
        self.bos_token_id = parts.bos_token_id
        self.eos_token_id = parts.eos_token_id
        self.eos_token_ids = parts.eos_token_ids
        """Every token that ends generation: end of text, of turn, of message."""
        self.add_bos = parts.add_bos
        """Whether prompts of this model begin with BOS, by the file's own word."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of typed text, after BOS where the model wants it. Bytes that the vocabulary has no token for are
        left out (SmolLM2 lacks a few control characters), as they are everywhere the model is run.

        :raises InvalidRequestError: ``text`` holds half of a surrogate pair, which no encoding has
        """
        token_ids = self._encode(self.escape(text))
        return self._with_bos(token_ids) if add_special_tokens else token_ids

    def escape(self, text: str) -> str:
        """Typed text made safe to stand in a text for ``encode_rendered``; nearly always the text itself.

        :raises InvalidRequestError: as ``encode``
        """
        if not text.isascii():
            _refuse_half_surrogates(text)
        return self._control_text.escape(text)

    def encode_rendered(self, text: str) -> list[int]:
        """Token ids of a rendered chat template. BOS is added where the model wants it and the template left it out.

        :raises InvalidRequestError: as ``encode``
        """
        _refuse_half_surrogates(text)
        return self._with_bos(self._encode(text))

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of a whole sequence. Bytes that aren't UTF-8 become U+FFFD; a space that encoding put before the
        text is taken away.
        """
        names: Mapping[int, str] = {} if skip_special_tokens else self._control_names
        data = b"".join(names[i].encode() if i in names else self.token_bytes(i) for i in token_ids)
        if self.strip_leading_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to the text: often a part of a word, sometimes a part of a character. Nothing for control
        tokens and for ids that the vocabulary doesn't have.
        """
        piece = None if token_id in self._control_names else self._backend.id_to_token(token_id)
        if piece is None:
            return b""
        if self._scheme == "sentencepiece":
            byte_token = _BYTE_TOKEN.fullmatch(piece)
            return bytes.fromhex(byte_token[1]) if byte_token else piece.replace(SPACE_SYMBOL, " ").encode()
        if token_id in self._added_token_ids or not self._gpt2_bytes.keys() >= set(piece):
            return piece.encode()  # stands in the vocabulary as plain text
        return bytes([self._gpt2_bytes[char] for char in piece])

    def token_text(self, token_id: int) -> str:
        """A token as people are shown it: its name if it's a control token, else its text."""
        name = self._control_names.get(token_id)
        return name if name is not None else self.token_bytes(token_id).decode("utf-8", errors="replace")

    def save(self, path: Path) -> None:
        """As a ``tokenizer.json``, for programs that read nothing else.

        :raises ModelFileError: its scheme isn't byte-pair encoding of bytes
        """
        if self._scheme != "byte_level":
            raise ModelFileError(f"a tokenizer of the scheme {self._scheme} can't be written as a file of its own")
        backend = Backend.from_str(self._backend.to_str())
        backend.decoder = decoders.ByteLevel()
        backend.save(str(path))

    def is_control(self, token_id: int) -> bool:
        return token_id in self._control_names

    def _encode(self, text: str) -> list[int]:
        # The batch call is the one that lets other threads run; "fast" leaves out offsets, which nobody reads.
        return self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def _with_bos(self, token_ids: list[int]) -> list[int]:
        if not self.add_bos or self.bos_token_id is None or token_ids[:1] == [self.bos_token_id]:
            return token_ids
        return [self.bos_token_id, *token_ids]


def tokenizer_from_gguf(metadata: Mapping[str, object], path: Path = Path("GGUF file")) -> Tokenizer:
    """The tokenizer that a GGUF file's own tables describe.

    :param path: names the file in messages
    :raises ModelFileError: tables that are missing or damaged, or a kind of tokenizer that isn't known
    """
    return Tokenizer(parts_from_gguf(metadata, path))


def tokenizer_from_folder(path: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face model folder.

    :raises ModelFileError: ``tokenizer.json`` is missing, damaged, or of a kind that isn't known
    """
    return Tokenizer(parts_from_folder(path))


def _refuse_half_surrogates(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"the text holds half of a surrogate pair (U+{ord(text[error.start]):04X}), which isn't a character",
            hint="send both halves, or leave it out",
        ) from None
