"""Settings of the HTTP service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ullage.base.byte_sizes import format_bytes
from ullage.base.config import setting
from ullage.base.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """Where the service listens and what it bounds. Everything that a client could make grow has a limit here."""

    host: str = setting("127.0.0.1", "Address to listen on; 0.0.0.0 for every network of this machine.")
    port: int = setting(8000, "Port to listen on; 0 picks a free one.", at_least=0)
    tls_cert_file: str | None = setting(
        None,
        "PEM file of this server's certificate and those that vouch for it; it is then reached by https only.",
        shown_default="plain http",
    )
    tls_key_file: str | None = setting(
        None, "PEM file of that certificate's key, which others must not be able to read.", shown_default="none"
    )
    tls_key_password_file: str | None = setting(
        None, "File whose first line is that key's password.", shown_default="no password"
    )
    tls_client_ca_file: str | None = setting(
        None,
        "PEM file of the authorities whose certificates clients must have; all others are refused.",
        shown_default="clients need no certificate",
    )
    max_body_bytes: int = setting(
        8 << 20, "Largest request body; a larger one is answered 413.", in_bytes=True, at_least=1
    )
    max_held_body_bytes: int = setting(
        256 << 20,
        "All request bodies that are held at once, until they are understood; what goes beyond is answered 429.",
        in_bytes=True,
        at_least=1,
    )
    max_connections: int = setting(2048, "Connections open at once; one more is answered 429 and closed.", at_least=1)
    header_timeout_seconds: float = setting(
        10.0, "How long a request header may take to arrive, in seconds.", at_least=0.1
    )
    body_timeout_seconds: float = setting(60.0, "How long a request body may take to arrive, in seconds.", at_least=0.1)
    send_timeout_seconds: float = setting(
        60.0, "A client that takes nothing of its answer for this many seconds has left.", at_least=0.1
    )
    send_bytes_per_second: int = setting(
        1024,
        "So many bytes that a slow reader takes earn it back a second of send_timeout_seconds.",
        in_bytes=True,
        at_least=1,
    )
    max_concurrent_requests: int = setting(1024, "Requests in work at once; one more is answered 429.", at_least=1)
    tokenizer_threads: int = setting(2, "Threads that turn text into tokens beside the event loop.", at_least=1)
    tool_format: Literal["auto", "hermes", "llama3_json", "mistral"] = setting(
        "auto",
        "How the model writes tool calls; auto goes by its chat template. Named, it also serves a model whose template "
        "has no tools: they are then described in a system message.",
    )
    ping_seconds: float = setting(
        10.0, "A silent stream sends a comment this often, in seconds, to stay open.", at_least=0.1
    )
    stall_seconds: float = setting(
        10.0,
        "Not live when requests run and the engine neither ended a step nor used a core for this many seconds.",
        at_least=1,
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "The least that is logged; info has a line for each request."
    )
    log_format: Literal["text", "json"] = setting("text", "Lines of text, or of JSON for programs.")
    otlp_endpoint: str | None = setting(
        None,
        "Address to which traces of requests are sent by OTLP over HTTP, like http://127.0.0.1:4318; needs the extra "
        "ullage[tracing].",
        shown_default="no traces",
    )
    otlp_headers: str | None = setting(
        None,
        "Headers for that address, like authorization=Bearer x; more of them after commas. A secret: only from the "
        "environment, or from the file that ULLAGE_OTLP_HEADERS_FILE names.",
        shown_default="none",
        secret=True,
    )
    probe_interval_seconds: float = setting(
        15.0,
        "How often an idle engine is asked a short question with a known answer, in seconds; not ready when it answers "
        "something else, or not at all. 0: never.",
        at_least=0,
    )
    probe_timeout_seconds: float = setting(
        8.0, "How long the answer to that question may take on an idle engine, in seconds.", at_least=0.1
    )
    drain_seconds: float = setting(
        30.0, "How long running requests may go on after a stop signal, in seconds.", at_least=0
    )
    request_timeout_seconds: float | None = setting(
        None,
        "How long a request may take, its time in the queue included, in seconds; clients may ask for less.",
        shown_default="no limit",
        at_least=0.001,
    )
    engine_process: bool = setting(
        True, "Run the engine in a process of its own, which is watched, and started again when it dies or hangs."
    )
    keep_alive_seconds: int = setting(75, "How long an idle connection stays open, in seconds.", at_least=0)

    def __post_init__(self) -> None:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ConfigError("TLS needs both a certificate and its key", hint="set tls_cert_file and tls_key_file")
        if self.tls_cert_file is None and (self.tls_key_password_file or self.tls_client_ca_file):
            raise ConfigError("clients can be checked, and passwords used, only with TLS", hint="set tls_cert_file")
        if self.max_body_bytes > self.max_held_body_bytes:
            raise ConfigError(
                f"one body may have {format_bytes(self.max_body_bytes)}, "
                f"but all bodies together only {format_bytes(self.max_held_body_bytes)}",
                hint="raise max_held_body_bytes or lower max_body_bytes",
            )
