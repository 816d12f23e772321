"""TLS of the broker and its child processes: refused clients, and certificates that change."""

from __future__ import annotations

import datetime
import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

import httpx
import pyarrow as pa
import pyarrow.flight as flight
import pytest
import trustme

from pyrite.client import FlightLog
from pyrite.storage.query import Query
from tests.conformance.wire import connect_packet
from tests.support.children import children
from tests.support.process import BrokerProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

HTTPS, FLIGHTS, MQTTS, HTTP = range(4)
LISTEN = [f"--listen={scheme}://127.0.0.1:0" for scheme in ("https", "flights", "mqtts", "http")]
ENCRYPTED = pytest.mark.parametrize("at", [HTTPS, FLIGHTS, MQTTS], ids=["https", "flights", "mqtts"])
FIRST = {HTTPS: b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", FLIGHTS: b"", MQTTS: connect_packet("c")}
"""The expected answer; with HTTP/2, the server may send first."""


class Place:
    """A folder with certificates, and a broker that uses them; `tls` is the rest of its [tls] table."""

    def __init__(self, folder: Path, tls: str = "") -> None:
        self.folder = folder
        self.authority = trustme.CA()
        self.authority.cert_pem.write_to_path(str(folder / "authority.pem"))
        self.certify()
        (folder / "pyrite.toml").write_text(f"[tls]\ncertificate = 'server.pem'\n{tls}")
        self.broker = BrokerProcess("--config", "pyrite.toml", *LISTEN, "--data", "data", cwd=folder)

    def certify(self) -> None:
        """Replace the broker's certificate."""
        chain = self.authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem
        chain.write_to_path(str(self.folder / "server.pem"))

    def context(self, shown: trustme.LeafCert | None = None) -> ssl.SSLContext:
        """Return a client's TLS settings."""
        context = ssl.create_default_context(cafile=str(self.folder / "authority.pem"))
        context.set_alpn_protocols(["h2", "http/1.1"])
        if shown is not None:
            shown.configure_cert(context)
        return context

    def dial(self, at: int) -> socket.socket:
        """Connect without a TLS handshake."""
        return socket.create_connection(("127.0.0.1", self.broker.port(at)), timeout=20)

    def shake_hands(self, at: int, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
        """Connect with TLS."""
        return (context or self.context()).wrap_socket(self.dial(at), server_hostname="127.0.0.1")

    def serial(self, at: int) -> object:
        """Return the serial number of the broker's certificate."""
        with self.shake_hands(at) as one:
            return serial_of(one)

    def is_refused(self, at: int, context: ssl.SSLContext) -> bool:
        """Whether a client is refused; with TLS 1.3 it learns that at its first read."""
        try:
            with self.shake_hands(at, context) as one:
                one.settimeout(20)
                one.sendall(FIRST[at])
                return not one.recv(1_000)
        except (ssl.SSLError, ConnectionError):
            return True

    def refusals(self) -> list[str]:
        """Return the log lines about refused clients."""
        return [line for line in self.broker.log if " refused " in line]

    def count(self) -> int:
        """Return the number of refused clients as the broker counts it."""
        text = httpx.get(f"{self.broker.urls[HTTP]}/metrics").text
        (line,) = [one for one in text.splitlines() if one.startswith("pyrite_connections_refused_total ")]
        return int(float(line.split()[1]))

    def hang_up(self) -> None:
        """Reload the certificates."""
        said = sum("were reloaded" in line for line in self.broker.log)
        self.broker.process.send_signal(signal.SIGHUP)
        wait_until(lambda: sum("were reloaded" in line for line in self.broker.log) > said)


def serial_of(one: ssl.SSLSocket) -> object:
    shown = one.getpeercert()
    assert shown is not None
    return shown["serialNumber"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A broker without client certificates."""
    found = Place(tmp_path)
    with found.broker:
        yield found


# Whom TLS turns away


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A broker that requires a client certificate and TLS 1.3."""
    folder = tmp_path_factory.mktemp("strict")
    more = "client_ca = 'authority.pem'\nrequire_client_certificate = true\nminimum_version = '1.3'\n"
    found = Place(folder, more)
    with found.broker:
        yield found


def older(place: Place) -> ssl.SSLContext:
    context = place.context(place.authority.issue_cert("ann@example.org"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def expired(place: Place) -> ssl.SSLContext:
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    return place.context(place.authority.issue_cert("ann@example.org", not_after=yesterday))


def strangers(place: Place) -> ssl.SSLContext:
    return place.context(trustme.CA().issue_cert("ann@example.org"))


@ENCRYPTED
@pytest.mark.parametrize(
    ("context", "part", "reason"),
    [
        (Place.context, "access", '"no certificate"'),
        (strangers, "access", '"its certificate was refused: unable to get local issuer certificate"'),
        (expired, "access", '"its certificate was refused: certificate has expired"'),
        (older, "connections", '"TLS: UNSUPPORTED_PROTOCOL"'),
    ],
    ids=["none", "a stranger's", "an old one", "an old version"],
)
def test_a_refused_client_is_logged_and_counted(
    strict: Place, at: int, context: Callable[[Place], ssl.SSLContext], part: str, reason: str
) -> None:
    lines, count = strict.refusals(), strict.count()
    assert strict.is_refused(at, context(strict))
    wait_until(lambda: len(strict.refusals()) > len(lines))
    (line,) = strict.refusals()[len(lines) :]
    assert line.endswith(f"INFO {part}: refused address=127.0.0.1 reason={reason}")
    assert strict.count() == count + 1


@ENCRYPTED
def test_a_client_with_a_valid_certificate_is_accepted(strict: Place, at: int) -> None:
    assert not strict.is_refused(at, strict.context(strict.authority.issue_cert("ann@example.org")))


# Other certificates


@ENCRYPTED
def test_a_change_of_certificates_refuses_no_client(place: Place, at: int) -> None:
    with place.dial(at) as early:
        before = place.serial(at)  # and so the connection made earlier was accepted
        processes = children(place.broker)
        place.certify()
        place.broker.process.send_signal(signal.SIGHUP)
        wait_until(lambda: place.serial(at) != before, "the new certificate is shown")
        assert len({place.serial(at) for _ in range(20)} | {before}) == 2
        with place.context().wrap_socket(early, server_hostname="127.0.0.1") as one:
            assert serial_of(one) == before, "it came before the change"
    assert children(place.broker) == processes
    assert not [line for line in place.broker.log if "ERROR" in line]


def test_a_request_continues_while_certificates_change(place: Place) -> None:
    body = json.dumps({"topic": "a", "payload": "x" * 1_000}).encode()
    head = f"POST /api/v1/publish HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
    with place.shake_hands(HTTPS) as one:
        one.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body[:500])
        place.certify()
        place.hang_up()
        wait_until(lambda: place.serial(HTTPS) != serial_of(one))
        one.sendall(body[500:])
        assert one.recv(10_000).startswith(b"HTTP/1.1 200 ")


def test_a_read_continues_while_certificates_change(place: Place) -> None:
    rows, batches = 40, 20  # more than the sockets on the way hold
    columns = {"topic": ["a"] * rows, "payload": [bytes(100_000)] * rows}
    batch = pa.record_batch(columns, pa.schema([("topic", pa.string()), ("payload", pa.binary())]))
    authority = str(place.folder / "authority.pem")
    with FlightLog(place.broker.urls[FLIGHTS], ca_file=authority, retry=0) as log:
        for number in range(batches):
            assert log.commit("t", number, log.stage("t", "p", batch.schema, [batch]).parts)
        before = place.serial(FLIGHTS)
        found = log.read(Query())
        read = next(found).num_rows
        assert read < rows * batches
        place.certify()
        place.hang_up()
        wait_until(lambda: place.serial(FLIGHTS) != before)
        assert read + sum(one.num_rows for one in found) == rows * batches


@ENCRYPTED
def test_a_change_of_authorities_closes_connections_with_certificates(tmp_path: Path, at: int) -> None:
    first, second = trustme.CA(), trustme.CA()
    first.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    slow = "[limits]\nconnect_timeout = 60\n"  # idle connections stay open
    place = Place(tmp_path, f"client_ca = 'ca.pem'\nrequire_client_certificate = true\n{slow}")
    one, other = (place.context(ca.issue_cert("ann@example.org")) for ca in (first, second))
    with place.broker, place.shake_hands(at, one) as stays:
        processes = children(place.broker)
        assert (place.is_refused(at, one), place.is_refused(at, other)) == (False, True)
        second.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        place.hang_up()
        try:
            while stays.recv(1_000):  # what HTTP/2 begins with
                pass
        except ConnectionResetError:
            pass
        assert (place.is_refused(at, one), place.is_refused(at, other)) == (True, False)
        assert children(place.broker) == processes


def test_a_child_that_cannot_load_new_certificates_ends(tmp_path: Path) -> None:
    tls = {
        "certificate": str(tmp_path / "gone.pem"),
        "key": "",
        "client_ca": "",
        "require_client_certificate": False,
        "certificate_user": "",
        "minimum_version": "1.2",
    }
    code = f"from pyrite.process.tls import *; context_or_exit(TlsSettings(**{tls!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "the certificates cannot be read: [Errno 2] No such file or directory\n"


# The Flight server behind the TLS of flights://


def test_connections_leave_nothing_behind(place: Place) -> None:
    def descriptors() -> list[int]:
        return [len(os.listdir(f"/proc/{one}/fd")) for one in children(place.broker)]

    def use() -> None:
        with FlightLog(place.broker.urls[FLIGHTS], ca_file=str(place.folder / "authority.pem")) as log:
            assert log.streams() == ["default"]

    use()
    before = descriptors()
    for _ in range(10):
        use()
        place.dial(FLIGHTS).close()
        place.shake_hands(FLIGHTS).close()
    wait_until(lambda: sum(descriptors()) <= sum(before))


def test_the_plain_socket_behind_tls_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TemporaryDirectory() as short:  # a socket's path has to be
        folder = Path(short) / "a %20 b"
        folder.mkdir()
        monkeypatch.setenv("TMPDIR", str(folder))
        _no_one_comes_past(Place(tmp_path), folder)


def _no_one_comes_past(place: Place, folder: Path) -> None:
    with place.broker:
        assert not place.is_refused(FLIGHTS, place.context())
        (private,) = folder.iterdir()
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
        assert os.listdir(private) == ["flight"]
        with (
            flight.FlightClient(f"grpc+unix://{quote(quote(str(private)))}/flight") as client,
            pytest.raises(flight.FlightUnavailableError, match="the connection is closed"),
        ):
            list(client.list_flights())
        place.broker.stop(signal.SIGKILL)
        wait_until(lambda: not private.exists())


def test_a_socket_path_that_is_too_long_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    with pytest.raises(RuntimeError, match=r"cannot listen on flights://.*TMPDIR"):
        Place(tmp_path)
