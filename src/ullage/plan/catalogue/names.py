"""Finding an entry by what people type: case, punctuation and the usual prefixes and suffixes don't matter."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping


def key_of(name: str, *, ignored: re.Pattern[str]) -> str:
    """What two spellings of one name have in common: letters and digits, without the words in ``ignored``."""
    plain = ignored.sub(" ", name.lower())
    return re.sub(r"[^a-z0-9+]", "", plain)


def similar(name: str, names: Mapping[str, str], *, ignored: re.Pattern[str], at_most: int = 3) -> tuple[str, ...]:
    """Entries whose spelling is near, nearest first, none twice.

    :param names: from the key of each spelling to the entry's name
    """
    key = key_of(name, ignored=ignored)
    near: Iterable[str] = difflib.get_close_matches(key, names, n=3 * at_most, cutoff=0.6)
    if key:
        near = (*sorted(known for known in names if known.startswith(key)), *near)
    return tuple(dict.fromkeys(names[match] for match in near))[:at_most]
