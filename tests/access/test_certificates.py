"""The name in a client certificate is the user name."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from pyrite.access.users import User, write_users
from pyrite.client import BlockingClient, ClientError, FlightLog
from pyrite.storage.query import Query
from tests.support.passwords import quick_hash
from tests.support.process import BrokerProcess

pytestmark = pytest.mark.slow

RULES = """
[access]
users = "users"
[[access.rule]]
users = ["ann@example.org", "Ann", "bob"]
publish = ["users/%u"]
pull = ["users/%u"]
"""


def make_files(folder: Path, **tls: object) -> None:
    """Write the configuration of a broker that takes user names from certificates, and Ann's certificate."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    chain = authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem
    chain.write_to_path(str(folder / "server.pem"))
    shown = authority.issue_cert("ann@example.org", common_name="Ann").private_key_and_cert_chain_pem
    shown.write_to_path(str(folder / "ann.pem"))
    write_users(folder / "users", [User("bob", quick_hash("secret"))])
    settings = "".join(f"{name} = {str(value).lower()}\n" for name, value in tls.items())
    files = "certificate = 'server.pem'\nclient_ca = 'ca.pem'\n"
    (folder / "pyrite.toml").write_text(f"[tls]\n{files}{settings}{RULES}")


@pytest.mark.parametrize(("where", "name"), [("san", "ann@example.org"), ("subject", "Ann")])
def test_a_certificate_identifies_a_user(tmp_path: Path, where: str, name: str) -> None:
    make_files(tmp_path, certificate_user=f"'{where}'")
    listen = [f"--listen={scheme}://127.0.0.1:0" for scheme in ("mqtts", "wss", "https")]
    with BrokerProcess("--config", "pyrite.toml", *listen, "--ephemeral", cwd=tmp_path) as broker:
        trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        showing = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        showing.load_cert_chain(str(tmp_path / "ann.pem"))
        for url in broker.urls[:2]:
            with BlockingClient(url, tls=showing) as client:
                client.publish(f"users/{name}", b"x", qos=1)
                with pytest.raises(ClientError, match="not authorized"):
                    client.publish("users/bob", b"x", qos=1)
            with pytest.raises(ClientError):
                BlockingClient(url, username="bob", password="secret", tls=showing).connect()
            with pytest.raises(ClientError):
                BlockingClient(url, tls=trusting).connect()
            with BlockingClient(url, username="bob", password="secret", tls=trusting) as client:
                client.publish("users/bob", b"x", qos=1)

        with httpx.Client(base_url=broker.urls[2], verify=showing) as http:
            about = http.get("/api/v1/broker").json()
            assert (about["user"], about["users"]) == (name, False)
            assert publish(http, f"users/{name}") == 200
            assert publish(http, "users/bob") == 403
            assert publish(http, "users/bob", auth=("bob", "secret")) == 401
        with httpx.Client(base_url=broker.urls[2], verify=trusting) as http:
            assert http.get("/api/v1/broker").json()["users"]
            assert publish(http, f"users/{name}") == 401
            assert publish(http, "users/bob", auth=("bob", "secret")) == 200


def publish(http: httpx.Client, topic: str, **given: Any) -> int:
    return http.post("/api/v1/publish", json={"topic": topic, "payload": "x"}, **given).status_code


def test_a_certificate_identifies_a_user_of_flight(tmp_path: Path) -> None:
    make_files(tmp_path, certificate_user="'san'", require_client_certificate=True)
    listen = [f"--listen={scheme}://127.0.0.1:0" for scheme in ("mqtts", "flights")]
    authority, ann = str(tmp_path / "ca.pem"), str(tmp_path / "ann.pem")
    with BrokerProcess("--config", "pyrite.toml", *listen, "--data", "data", cwd=tmp_path) as broker:
        showing = ssl.create_default_context(cafile=authority)
        showing.load_cert_chain(ann)
        with BlockingClient(broker.urls[0], tls=showing) as client:
            client.publish("users/ann@example.org", b"x", qos=1)
        with FlightLog(broker.urls[1], ca_file=authority, cert_file=ann) as log:
            assert log.table(Query(topics=("users/ann@example.org",)))["payload"].to_pylist() == [b"x"]
            with pytest.raises(PermissionError, match="not authorized"):
                log.table(Query(topics=("users/bob",)))
        bob: dict[str, Any] = {"username": "bob", "password": "secret"}
        with (
            FlightLog(broker.urls[1], ca_file=authority, cert_file=ann, **bob) as log,
            pytest.raises(PermissionError, match="another user"),
        ):
            log.table(Query(topics=("users/bob",)))
        with (
            FlightLog(broker.urls[1], ca_file=authority, retry=0.5, **bob) as log,
            pytest.raises(ConnectionError),
        ):
            log.streams()


@pytest.mark.parametrize(
    "tls",
    [{"certificate_user": "'subject'", "require_client_certificate": True}, {"certificate_user": "'san'"}],
)
def test_flight_refuses_names_that_it_cannot_verify(tmp_path: Path, tls: dict[str, object]) -> None:
    make_files(tmp_path, **tls)
    authority, ann = str(tmp_path / "ca.pem"), str(tmp_path / "ann.pem")
    options = ("--config", "pyrite.toml", "--listen=flights://127.0.0.1:0", "--data", "data")
    with BrokerProcess(*options, cwd=tmp_path) as broker:
        with (
            FlightLog(broker.urls[0], ca_file=authority, cert_file=ann) as log,
            pytest.raises(PermissionError, match="a user name and password are required"),
        ):
            log.streams()
        bob: dict[str, Any] = {"username": "bob", "password": "secret"}
        with FlightLog(broker.urls[0], ca_file=authority, cert_file=ann, **bob) as log:
            assert log.table(Query(topics=("users/bob",))).num_rows == 0
