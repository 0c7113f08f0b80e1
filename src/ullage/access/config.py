"""Settings of who may come in, and how much each may use."""

from __future__ import annotations

from dataclasses import dataclass

from ullage.base.config import setting


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """By default everybody who reaches the address may use it, without a limit of their own."""

    api_keys_file: str | None = setting(
        None,
        "File of API keys, made with ullage keys; every address but /health/live then needs one.",
        shown_default="no keys needed",
    )
