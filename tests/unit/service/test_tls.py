"""Certificates and keys that can be served, and those that can't."""

from __future__ import annotations

import contextlib
import os
import ssl
from pathlib import Path

import pytest
from tests.certificates import make_authority, make_certificate

from ullage.base.errors import ConfigError
from ullage.service.config import ServiceConfig
from ullage.service.tls import ServedContext, follow_certificate, server_context


@pytest.fixture(scope="module")
def authority():
    return make_authority()


@pytest.fixture
def files(authority, tmp_path):
    cert, key = make_certificate(authority).write(tmp_path, "server")
    return {"tls_cert_file": cert, "tls_key_file": key}


def refusal(**settings):
    with pytest.raises(ConfigError) as refused:
        server_context(ServiceConfig(**settings))
    return str(refused.value)


def test_without_settings_there_is_no_tls():
    assert server_context(ServiceConfig()) is None


def test_nothing_older_than_tls_1_2_is_spoken(files):
    context = server_context(ServiceConfig(**files))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.verify_mode == ssl.CERT_NONE


def test_clients_need_a_certificate_where_an_authority_is_named(files, authority, tmp_path):
    cert, _ = authority.write(tmp_path, "authority")
    context = server_context(ServiceConfig(**files, tls_client_ca_file=cert))
    assert context.verify_mode == ssl.CERT_REQUIRED


@pytest.mark.parametrize("settings", [{"tls_cert_file": "a"}, {"tls_key_file": "a"}, {"tls_client_ca_file": "a"}])
def test_half_of_what_tls_needs_is_refused(settings):
    assert "tls_cert_file" in refusal(**settings)


@pytest.mark.parametrize("name", ["tls_cert_file", "tls_key_file", "tls_key_password_file", "tls_client_ca_file"])
def test_a_file_that_is_not_there_is_named(files, name):
    assert "/nowhere" in refusal(**files | {name: "/nowhere"})


@pytest.mark.parametrize("name", ["tls_cert_file", "tls_key_file", "tls_client_ca_file"])
def test_a_file_of_something_else_is_named(files, tmp_path, name):
    (tmp_path / "other").write_text("hello")
    (tmp_path / "other").chmod(0o600)
    assert "other" in refusal(**files | {name: str(tmp_path / "other")})


def test_a_key_of_another_certificate_is_told(files, authority, tmp_path):
    _, key = make_certificate(authority).write(tmp_path, "other")
    assert "is not the key of the certificate" in refusal(**files | {"tls_key_file": key})


def test_a_key_that_everybody_may_read_is_refused(files):
    os.chmod(files["tls_key_file"], 0o644)
    assert "chmod" in refusal(**files)
    os.chmod(files["tls_key_file"], 0o640)
    server_context(ServiceConfig(**files))


@pytest.mark.parametrize("days", [-1, -50])
def test_an_expired_certificate_is_refused(authority, tmp_path, days):
    cert, key = make_certificate(authority, days=days).write(tmp_path, "server")
    assert "has expired" in refusal(tls_cert_file=cert, tls_key_file=key)


def test_a_password_opens_a_key_and_is_never_told(authority, tmp_path):
    cert, key = make_certificate(authority).write(tmp_path, "server", password="swordfish")
    files = {"tls_cert_file": cert, "tls_key_file": key}
    assert "needs a password" in refusal(**files)
    password = tmp_path / "password"
    password.write_text("marker\n")
    assert "marker" not in refusal(**files, tls_key_password_file=str(password))
    password.write_text("swordfish\n")
    server_context(ServiceConfig(**files, tls_key_password_file=str(password)))
    password.write_text("\n")
    assert "no secret" in refusal(**files, tls_key_password_file=str(password))


def test_a_chain_is_served_and_its_first_certificate_is_the_server_s(files, authority, tmp_path):
    ca, _ = authority.write(tmp_path, "authority")
    own, chain = Path(files["tls_cert_file"]).read_text(), tmp_path / "chain.crt"
    chain.write_text(own + Path(ca).read_text())
    server_context(ServiceConfig(**files | {"tls_cert_file": str(chain)}))
    chain.write_text(Path(ca).read_text() + own)
    assert "stand first" in refusal(**files | {"tls_cert_file": str(chain)})


def serial_shown(served, authority, tmp_path):
    """Of the certificate that a new connection is shown."""
    ca, _ = authority.write(tmp_path, "trusted")
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=ca).wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    server = served.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for end in (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return int(client.getpeercert()["serialNumber"], 16)


def test_a_reload_serves_what_was_checked_whatever_happened_to_the_files_since(files, authority, tmp_path):
    config = ServiceConfig(**files)
    served = ServedContext.of(server_context(config))
    first = serial_shown(served, authority, tmp_path)
    Path(files["tls_key_file"]).unlink()
    new = make_certificate(authority)
    new.write(tmp_path, "server")
    apply = follow_certificate(served, config).prepare({})
    assert serial_shown(served, authority, tmp_path) == first != new.cert.serial_number
    for name in files.values():
        Path(name).unlink()
    apply()
    assert serial_shown(served, authority, tmp_path) == new.cert.serial_number


def test_a_reload_that_finds_a_bad_certificate_changes_nothing(files, authority, tmp_path):
    config = ServiceConfig(**files)
    served = ServedContext.of(server_context(config))
    first = serial_shown(served, authority, tmp_path)
    Path(files["tls_cert_file"]).write_text("hello")
    with pytest.raises(ConfigError):
        follow_certificate(served, config).prepare({})
    assert serial_shown(served, authority, tmp_path) == first
