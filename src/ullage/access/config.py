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
    limits_file: str | None = setting(
        None,
        "TOML file of what each tenant may use: requests and tokens a minute, requests at once, quotas, weight, class.",
        shown_default="no limits",
    )
    access_store: str | None = setting(
        None,
        "Where limits and quotas are counted: an SQLite file, or redis://HOST:PORT/DB for several servers together.",
        shown_default="in the server itself; quotas need a store",
    )
    redis_password_file: str | None = setting(
        None, "File whose first line is the password of that Redis.", shown_default="no password"
    )
