"""A tokenizer from a Hugging Face model folder: ``tokenizer.json`` and the two configurations beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ullage.base.errors import ModelFileError
from ullage.models.fields import Fields, read_json_object
from ullage.models.tokenizer_parts import END_OF_GENERATION_NAMES, PieceScheme, TokenizerParts

_MAX_TOKENIZER_BYTES = 256 * 2**20
_MAX_CONFIG_BYTES = 16 * 2**20


def parts_from_folder(folder: Path) -> TokenizerParts:
    """:raises ModelFileError: ``tokenizer.json`` is missing, damaged, or of a kind that isn't known"""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelFileError(
            f"{folder} has no tokenizer.json",
            hint="save the model's fast tokenizer into the folder, or use a GGUF file",
        )
    description = read_json_object(path, _MAX_TOKENIZER_BYTES)
    control = _settle_added_tokens(path, description)
    backend = _load(path, description)
    scheme, strip_leading_space = _scheme(path, description)
    config = _configuration(folder / "tokenizer_config.json")
    # What tokenizer.json itself puts before a text, if that is a control token.
    first = next((i for i in backend.encode("", add_special_tokens=True).ids if i in control.values()), None)
    named_bos = _named_token(config, "bos_token", backend)
    bos = first if named_bos is None else named_bos
    add_bos = config.flag("add_bos_token", first is not None and first == bos)
    if add_bos and bos is None:
        raise config.error("add_bos_token", "wants BOS before every prompt, but no bos_token says which token it is")
    eos = _named_token(config, "eos_token", backend)
    return TokenizerParts(
        backend=backend,
        scheme=scheme,
        strip_leading_space=strip_leading_space,
        vocab_size=max(backend.get_vocab().values(), default=-1) + 1,
        control_tokens=control,
        bos_token_id=bos,
        eos_token_id=eos,
        eos_token_ids=_ends_of_generation(folder, eos, control),
        add_bos=add_bos,
    )


def _settle_added_tokens(path: Path, description: dict[str, Any]) -> dict[str, int]:
    """The control tokens by name. Changes ``description`` so that they're found in a text before it's normalized:
    normalizing is when typed text gets its original form back (see ``ullage.models.control_text``).
    """
    control = {}
    tokens = description.get("added_tokens") or []
    if not isinstance(tokens, list):
        raise ModelFileError(f"{path}: added_tokens must be a list")
    for token in tokens:
        match token:
            case {"content": str(name), "id": int(token_id), "special": bool(special)}:
                if special or name in END_OF_GENERATION_NAMES:
                    control[name] = token_id
                    token.update(special=True, normalized=False)
            case _:
                raise ModelFileError(f"{path}: an entry of added_tokens isn't a token: {token!r:.80}")
    return control


def _load(path: Path, description: dict[str, Any]) -> Tokenizer:
    whole_texts = {"truncation": None, "padding": None}
    try:
        return Tokenizer.from_str(json.dumps(description | whole_texts))
    except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
        raise ModelFileError(f"{path}: {error}") from None


def _scheme(path: Path, description: Mapping[str, Any]) -> tuple[PieceScheme, bool]:
    """How pieces become text, and whether the first space is taken away: read off the file's decoder."""
    decoder = description.get("decoder") or {"type": "none"}
    steps = {step["type"]: step for step in decoder.get("decoders", [decoder])}
    if "ByteLevel" in steps:
        return "byte_level", False
    if "Metaspace" in steps:
        return "sentencepiece", steps["Metaspace"].get("prepend_scheme", "always") != "never"
    if "ByteFallback" in steps:
        return "sentencepiece", steps.get("Strip", {}).get("start", 0) > 0
    raise ModelFileError(
        f"{path}: a tokenizer whose decoder is {', '.join(steps)} isn't known",
        hint="known are: ByteLevel, Metaspace, ByteFallback",
    )


def _named_token(config: Fields, key: str, backend: Tokenizer) -> int | None:
    """The id of a token that is given by name, or by an object that holds its name."""
    value = config.raw(key)
    name = value.get("content") if isinstance(value, dict) else value
    if name is None:
        return None
    token_id = backend.token_to_id(name) if isinstance(name, str) else None
    if token_id is None:
        raise config.error(key, f"is {name!r:.80}, which tokenizer.json doesn't have")
    return token_id


def _ends_of_generation(folder: Path, eos: int | None, control: Mapping[str, int]) -> frozenset[int]:
    ends = {token_id for name, token_id in control.items() if name in END_OF_GENERATION_NAMES}
    if eos is not None:
        ends.add(eos)
    for name in ("config.json", "generation_config.json"):
        config = _configuration(folder / name)
        value = config.raw("eos_token_id")
        ids: list[Any] = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(token_id, int) and token_id >= 0 for token_id in ids):
            raise config.error("eos_token_id", f"must be a token id or a list of them, not {value!r:.80}")
        ends.update(ids)
    return frozenset(ends)


def _configuration(path: Path) -> Fields:
    """An optional file: without it, nothing is set."""
    return Fields(path, read_json_object(path, _MAX_CONFIG_BYTES) if path.is_file() else {})
