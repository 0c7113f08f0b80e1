"""Settings of the gateway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ullage.base.byte_sizes import format_bytes
from ullage.base.config import setting
from ullage.base.errors import ConfigError
from ullage.gateway.forwarded import parse_trusted


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Where the gateway listens, what it bounds, and when it takes a replica out of rotation."""

    host: str = setting("127.0.0.1", "Address to listen on; 0.0.0.0 for every network of this machine.")
    port: int = setting(8080, "Port to listen on; 0 picks a free one.", at_least=0)
    max_body_bytes: int = setting(
        8 << 20, "Largest request body; a larger one is answered 413.", in_bytes=True, at_least=1
    )
    max_held_body_bytes: int = setting(
        256 << 20,
        "All request bodies that are held at once, until an answer begins; what goes beyond is answered 429.",
        in_bytes=True,
        at_least=1,
    )
    max_event_bytes: int = setting(
        4 << 20, "Largest event of a stream; a larger one ends it with an error.", in_bytes=True, at_least=1
    )
    max_connections: int = setting(2048, "Connections open at once; one more is answered 429 and closed.", at_least=1)
    max_concurrent_requests: int = setting(1024, "Requests in work at once; one more is answered 429.", at_least=1)
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
    keep_alive_seconds: int = setting(75, "How long an idle connection stays open, in seconds.", at_least=0)
    drain_seconds: float = setting(
        30.0, "How long running requests may go on after a stop signal, in seconds.", at_least=0
    )
    trusted_proxies: str | None = setting(
        None,
        "Networks of proxies before the gateway, with commas between: the X-Forwarded-For that they send is kept, and "
        "the address they call from added.",
        shown_default="the header is written anew",
    )
    connect_timeout_seconds: float = setting(
        2.0, "How long a connection to a replica may take to open, in seconds.", at_least=0.01
    )
    first_byte_timeout_seconds: float = setting(
        60.0, "How long a replica may take to begin the answer to a request for a stream, in seconds.", at_least=0.01
    )
    answer_timeout_seconds: float = setting(
        600.0,
        "How long a replica may take to begin any other answer, in seconds; it often begins when all of it is made.",
        at_least=0.01,
    )
    idle_timeout_seconds: float = setting(
        60.0, "How long a replica may be silent in the middle of an answer, in seconds.", at_least=0.01
    )
    max_attempts: int = setting(
        3, "Replicas that one request is offered to, as long as none has begun to answer.", at_least=1
    )
    health_interval_seconds: float = setting(
        2.0, "How often each replica is asked whether it is ready, in seconds.", at_least=0.01
    )
    health_timeout_seconds: float = setting(2.0, "How long the answer to that may take, in seconds.", at_least=0.01)
    health_failures: int = setting(
        2, "So many such answers in a row that don't come take a replica out; a refusal does at once.", at_least=1
    )
    ejection_failures: int = setting(
        3, "So many failed requests in a row, or within the error window at that rate, eject a replica.", at_least=1
    )
    ejection_error_rate: float = setting(
        0.5, "Share of failed requests within the error window that ejects a replica, above 0, up to 1."
    )
    error_window_seconds: float = setting(30.0, "Length of the error window, in seconds.", at_least=0.01)
    ejection_seconds: float = setting(
        10.0, "How long a replica is ejected, in seconds; twice as long each time that its trial fails.", at_least=0.01
    )
    max_ejection_seconds: float = setting(300.0, "The longest ejection, in seconds.", at_least=0.01)
    slow_start_seconds: float = setting(
        30.0, "How long a replica that comes back takes to its full weight, in seconds.", at_least=0
    )
    sticky_bytes: int = setting(
        0,
        "Prompts that begin with the same so many bytes go to the same replica, for its prefix cache; 0: any.",
        in_bytes=True,
    )
    sticky_header: str | None = setting(
        None, "Requests with the same value of this header go to the same replica.", shown_default="none"
    )
    sticky_slack: float = setting(
        1.25, "So many times its fair share of the running requests a replica takes before such go on.", at_least=1
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "The least that is logged; info has a line for each request."
    )
    log_format: Literal["text", "json"] = setting("text", "Lines of text, or of JSON for programs.")

    def __post_init__(self) -> None:
        parse_trusted(self.trusted_proxies)
        if self.max_body_bytes > self.max_held_body_bytes:
            raise ConfigError(
                f"one body may have {format_bytes(self.max_body_bytes)}, "
                f"but all bodies together only {format_bytes(self.max_held_body_bytes)}",
                hint="raise max_held_body_bytes or lower max_body_bytes",
            )
        if not 0 < self.ejection_error_rate <= 1:
            raise ConfigError(f"ejection_error_rate must be above 0 and up to 1, got {self.ejection_error_rate:g}")
        if self.ejection_seconds > self.max_ejection_seconds:
            raise ConfigError("ejection_seconds exceeds max_ejection_seconds", hint="raise max_ejection_seconds")
