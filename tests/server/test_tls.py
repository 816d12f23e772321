"""mqtts:// and wss://: TLS versions, client certificates, and plain text on an encrypted port."""

from __future__ import annotations

import socket
import ssl
import warnings
from pathlib import Path

import pytest

from tests.conformance.client import Closed
from tests.conformance.wire import Will, connect_packet

from .conftest import Certificates, Serve
from .peers import Server, endpoint_of, open_client, run_serve

ENCRYPTED = ["mqtts", "wss"]


def only(context: ssl.SSLContext, version: ssl.TLSVersion) -> ssl.SSLContext:
    """Return TLS settings of a client that speaks one version only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that old versions are old is the point
        context.minimum_version = context.maximum_version = version
    if version < ssl.TLSVersion.TLSv1_2:
        context.set_ciphers("ALL:@SECLEVEL=0")  # else our own side would not even try
    return context


def shake_hands(server: Server, scheme: str, context: ssl.SSLContext) -> str | None:
    """Connect an MQTT client with these TLS settings; return the negotiated version."""
    client = open_client(server.urls[scheme], context=context)
    try:
        assert client.connect().reason == 0
        client.ping()
        endpoint = endpoint_of(client)
        assert isinstance(endpoint, ssl.SSLSocket)
        return endpoint.version()
    finally:
        client.close()


@pytest.mark.parametrize("scheme", ENCRYPTED)
@pytest.mark.parametrize(
    ("version", "name"), [(ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")]
)
def test_tls_1_2_and_1_3_are_supported(
    server: Server, certificates: Certificates, scheme: str, version: ssl.TLSVersion, name: str
) -> None:
    assert shake_hands(server, scheme, only(certificates.context(), version)) == name


@pytest.mark.parametrize("scheme", ENCRYPTED)
def test_the_newest_common_version_is_negotiated(
    server: Server, certificates: Certificates, scheme: str
) -> None:
    assert shake_hands(server, scheme, certificates.context()) == "TLSv1.3"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_older_versions_are_refused_by_the_broker(
    server: Server, certificates: Certificates, version: ssl.TLSVersion
) -> None:
    with pytest.raises(ssl.SSLError):
        shake_hands(server, "mqtts", only(certificates.context(), version))


def test_the_minimum_version_is_enforced(serve: Serve, certificates: Certificates) -> None:
    server = serve(f"[tls]\ncertificate = '{certificates.server}'\nminimum_version = '1.3'\n", "mqtts")
    assert shake_hands(server, "mqtts", only(certificates.context(), ssl.TLSVersion.TLSv1_3)) == "TLSv1.3"
    with pytest.raises(ssl.SSLError):
        shake_hands(server, "mqtts", only(certificates.context(), ssl.TLSVersion.TLSv1_2))


def test_the_certificate_is_the_one_configured(server: Server) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, "mqtts", ssl.create_default_context())


def test_the_key_may_be_in_a_separate_file(serve: Serve, certificates: Certificates, tmp_path: Path) -> None:
    text = certificates.server.read_text()
    at = text.index("-----BEGIN CERTIFICATE")
    (tmp_path / "key.pem").write_text(text[:at])
    (tmp_path / "certificate.pem").write_text(text[at:])
    table = f"[tls]\ncertificate = '{tmp_path}/certificate.pem'\nkey = '{tmp_path}/key.pem'\n"
    assert shake_hands(serve(table, "mqtts"), "mqtts", certificates.context())


def test_a_key_with_a_pass_phrase_is_refused_without_a_prompt(
    certificates: Certificates, tmp_path: Path
) -> None:
    from cryptography.hazmat.primitives import serialization

    text = certificates.server.read_bytes()
    key = serialization.load_pem_private_key(text, None)
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    (tmp_path / "pyrite.toml").write_text(
        f"listen = ['mqtts://127.0.0.1:0']\n"
        f"[tls]\ncertificate = '{certificates.server}'\nkey = '{tmp_path}/key.pem'\n"
    )
    done = run_serve("--ephemeral", "--config", "pyrite.toml", cwd=tmp_path)
    assert done.code == 2
    assert "tls.key" in done.stderr
    assert "Enter" not in done.stderr
    assert "Traceback" not in done.stderr


# Client certificates


def with_client_ca(certificates: Certificates, required: bool) -> str:
    return (
        f"[tls]\ncertificate = '{certificates.server}'\nclient_ca = '{certificates.authority}'\n"
        f"require_client_certificate = {str(required).lower()}\n"
    )


def refused(server: Server, scheme: str, context: ssl.SSLContext) -> bool:
    """Whether the broker refuses a client; with TLS 1.3 the client learns that at its first read."""
    try:
        shake_hands(server, scheme, context)
    except (ssl.SSLError, ConnectionError, Closed, AssertionError):
        return True
    return False


@pytest.mark.parametrize("scheme", ENCRYPTED)
def test_a_client_without_the_required_certificate_is_refused(
    serve: Serve, certificates: Certificates, scheme: str
) -> None:
    server = serve(with_client_ca(certificates, required=True), scheme)
    known, unknown, none = certificates.context(), certificates.context(), certificates.context()
    known.load_cert_chain(certificates.client)
    unknown.load_cert_chain(certificates.stranger)
    assert refused(server, scheme, none)
    assert refused(server, scheme, unknown)
    assert not refused(server, scheme, known)


def test_an_optional_certificate_may_be_missing_but_not_unknown(
    serve: Serve, certificates: Certificates
) -> None:
    server = serve(with_client_ca(certificates, required=False), "mqtts")
    known, unknown = certificates.context(), certificates.context()
    known.load_cert_chain(certificates.client)
    unknown.load_cert_chain(certificates.stranger)
    assert not refused(server, "mqtts", certificates.context())
    assert not refused(server, "mqtts", known)
    assert refused(server, "mqtts", unknown)


def test_without_an_authority_client_certificates_are_ignored(
    server: Server, certificates: Certificates
) -> None:
    context = certificates.context()
    context.load_cert_chain(certificates.stranger)
    assert not refused(server, "mqtts", context)


# What is not TLS


@pytest.mark.parametrize("scheme", ENCRYPTED)
@pytest.mark.parametrize(
    "data",
    [
        connect_packet("plain"),
        b"GET /mqtt HTTP/1.1\r\n\r\n",
        bytes(100),
        b"\x16\x03\x01\xff\xff" + bytes(100),
    ],
    ids=["MQTT", "HTTP", "zeroes", "a broken record"],
)
def test_plain_text_on_the_encrypted_port_closes_only_its_own_connection(
    server: Server, scheme: str, data: bytes
) -> None:
    witness = server.connect(scheme)
    stream = server.dial(scheme)
    stream.send(data)
    stream.socket.shutdown(socket.SHUT_WR)
    while chunk := stream.receive(5):
        assert chunk[:1] == b"\x15", "an alert, and nothing else"
    witness.ping()


def test_a_broken_handshake_closes_only_its_own_connection(server: Server) -> None:
    witness = server.connect("mqtts")
    for _ in range(20):
        stream = server.dial("mqtts")
        stream.send(b"\x16\x03\x01\x02\x00\x01")
        stream.reset()
    witness.ping()


def test_plain_text_within_a_session_closes_only_its_own_connection(server: Server) -> None:
    witness, client = server.connect("mqtts"), server.connect("mqtts")
    endpoint = endpoint_of(client)
    raw = socket.socket(fileno=endpoint.detach())
    try:
        raw.settimeout(5)
        raw.sendall(connect_packet("plain"))
        while raw.recv(65536):
            pass
    except ConnectionResetError:
        pass
    finally:
        raw.close()
    witness.ping()


@pytest.mark.parametrize("scheme", ENCRYPTED)
def test_a_tls_close_notify_ends_the_connection(server: Server, scheme: str, topic: str) -> None:
    witness = server.connect()
    witness.subscribe(topic)
    client = server.connect(scheme, will=Will(topic, b"gone"))
    endpoint = endpoint_of(client)
    assert isinstance(endpoint, ssl.SSLSocket)
    try:
        endpoint.unwrap().close()
    except OSError:
        pass  # the broker closed without a goodbye of its own
    assert witness.receive().payload == b"gone"
