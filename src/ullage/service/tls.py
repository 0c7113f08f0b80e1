"""TLS: the server's certificate, checked before it is used, and whose clients may connect.

A certificate that no client could accept is found at the start, not by the first client: the server shakes hands with
itself in memory, as a client that trusts this one certificate.
"""

from __future__ import annotations

import ssl
from functools import partial
from pathlib import Path

from ullage.base.errors import ConfigError
from ullage.base.secret_file import read_secret
from ullage.service.config import ServiceConfig
from ullage.service.reload import Apply, Reloadable, Settings

READABLE_BY_OTHERS = 0o007
HAS_EXPIRED, NOT_YET_VALID = 10, 9
"""What OpenSSL calls it (X509_V_ERR_...)."""


def server_context(config: ServiceConfig) -> ssl.SSLContext | None:
    """None where no TLS is asked for.

    :raises ConfigError: a file that is missing, can't be read or used; a key that others may read or that isn't the
        certificate's; a certificate that isn't valid now
    """
    if config.tls_cert_file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _load_certificate(context, config)
    _check_certificate(context, Path(config.tls_cert_file))
    if config.tls_client_ca_file is not None:
        _load_client_ca(context, config.tls_client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class ServedContext(ssl.SSLContext):
    """What a listening socket is given: each new connection gets the newest context, whole. Connections that are open
    keep theirs.
    """

    current: ssl.SSLContext

    @classmethod
    def of(cls, current: ssl.SSLContext) -> ServedContext:
        served = cls(ssl.PROTOCOL_TLS_SERVER)
        served.current = current
        return served

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return self.current.wrap_bio(incoming, outgoing, server_side, server_hostname, session)


def follow_certificate(served: ServedContext, config: ServiceConfig) -> Reloadable:
    """A reload reads all files of TLS anew, for the connections to come."""

    def prepare(_: Settings) -> Apply:
        return partial(setattr, served, "current", server_context(config))

    return Reloadable("certificate", (), prepare)


def _load_certificate(context: ssl.SSLContext, config: ServiceConfig) -> None:
    assert config.tls_cert_file is not None
    assert config.tls_key_file is not None
    key_path, cert_path = Path(config.tls_key_file), Path(config.tls_cert_file)
    if _mode(key_path, "tls_key_file") & READABLE_BY_OTHERS:
        raise ConfigError(f"everybody on this machine may read the key {key_path}", hint=f"chmod o= {key_path}")
    _mode(cert_path, "tls_cert_file")
    password = None if config.tls_key_password_file is None else read_secret(Path(config.tls_key_password_file))

    def give_password() -> str:  # without one, OpenSSL would ask at the terminal
        if password is None:
            raise ConfigError(f"the key {key_path} needs a password", hint="name its file: tls_key_password_file")
        return password

    try:
        context.load_cert_chain(cert_path, key_path, give_password)
    except ssl.SSLError as error:
        raise ConfigError(_what_is_wrong(error, cert_path, key_path, password), hint=_hint(error)) from None
    except OSError as error:
        raise ConfigError(f"can't read {cert_path} or {key_path}: {error.strerror}") from None


def _what_is_wrong(error: ssl.SSLError, cert_path: Path, key_path: Path, password: str | None) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"{key_path} is not the key of the certificate {cert_path}"
    if password is not None:
        return f"{key_path} is no key in PEM form that the password opens, or {cert_path} is no certificate"
    return f"{cert_path} is no certificate, or {key_path} no key, in PEM form"


def _hint(error: ssl.SSLError) -> str | None:
    if error.reason != "KEY_VALUES_MISMATCH":
        return None
    return "the server's own certificate must stand first in its file, those of authorities behind it"


def _load_client_ca(context: ssl.SSLContext, name: str) -> None:
    _mode(Path(name), "tls_client_ca_file")
    try:
        context.load_verify_locations(name)
    except (ssl.SSLError, OSError):
        raise ConfigError(
            f"{name} has no certificates of authorities in PEM form", hint="see tls_client_ca_file"
        ) from None


def _mode(path: Path, setting: str) -> int:
    """:raises ConfigError: it can't be opened"""
    try:
        with path.open("rb"):
            return path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"{setting}: can't read {path}: {error.strerror}") from None


def _check_certificate(context: ssl.SSLContext, cert_path: Path) -> None:
    """Shakes hands in memory, up to where the client has seen enough."""
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False  # names aren't ours to judge: people may serve behind any
    client_context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate vouches for itself
    client_context.load_verify_locations(cert_path)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    try:
        while not (_goes_on(client) & _goes_on(server)):
            pass
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in (HAS_EXPIRED, NOT_YET_VALID):
            when = "has expired" if error.verify_code == HAS_EXPIRED else "is not valid yet"
            raise ConfigError(
                f"the certificate {cert_path} {when}", hint="get a new one, or set this machine's clock"
            ) from None
        raise ConfigError(f"no client can accept the certificate {cert_path}: {error.verify_message}") from None
    except ssl.SSLError as error:
        raise ConfigError(f"the certificate {cert_path} can't be served: {error.reason}") from None


def _goes_on(end: ssl.SSLObject) -> bool:
    """True: it has nothing left to do."""
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
