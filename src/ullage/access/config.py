"""Settings of who may come in, and how much each may use."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ullage.access.client_address import client_addresses
from ullage.base.config import setting
from ullage.base.errors import ConfigError

ORIGIN = re.compile(r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:]+\])(?::[0-9]{1,5})?")


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
    allowed_clients: str | None = setting(
        None,
        "Networks that may come in, IPv4 or IPv6, with commas between; everybody else is answered 403, but for "
        "/health/live.",
        shown_default="everybody",
    )
    trusted_proxies: str | None = setting(
        None,
        "Networks of proxies whose X-Forwarded-For tells the client's address, with commas between.",
        shown_default="the header is ignored",
    )
    cors_origins: str | None = setting(
        None,
        "Origins whose pages may call this server, like https://chat.example.com, with commas between; * for all, "
        "without API keys only.",
        shown_default="none",
    )
    audit_log_file: str | None = setting(
        None,
        "File that gets a line of JSON for each generation and each refused or failed request.",
        shown_default="no audit log",
    )
    audit_log_max_bytes: int = setting(
        64 << 20, "Size at which the audit log begins a new file.", in_bytes=True, at_least=1 << 16
    )
    audit_log_files: int = setting(
        8, "Files of the audit log that are kept, the present one included; the oldest is deleted.", at_least=2
    )
    audit_log_prompts: bool = setting(False, "Write prompts and answers into the audit log too.")
    audit_log_required: bool = setting(
        False,
        "Serve nothing, and be not ready, while the audit log can't be written; otherwise the server's log says so.",
    )

    def __post_init__(self) -> None:
        client_addresses(self.allowed_clients, self.trusted_proxies)
        if self.audit_log_required and self.audit_log_file is None:
            raise ConfigError("audit_log_required needs an audit log", hint="name one with audit_log_file")
        if "*" in self.origins and self.api_keys_file is not None:
            raise ConfigError("cors_origins can't be * with API keys", hint="name each origin that may use them")
        for origin in self.origins:
            if origin != "*" and not ORIGIN.fullmatch(origin):
                hint = "write it as browsers do, in lower case and without a path: https://chat.example.com"
                raise ConfigError(f"cors_origins: {origin!r} is no origin", hint=hint)

    @property
    def origins(self) -> tuple[str, ...]:
        return () if self.cors_origins is None else tuple(origin.strip() for origin in self.cors_origins.split(","))
