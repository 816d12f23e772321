"""The name in a client's certificate is the user's."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from pyrite.access.users import User, hash_password, write_users
from pyrite.client import BlockingClient, ClientError
from tests.support.process import BrokerProcess

RULES = """
[access]
users = "users"
[[access.rule]]
users = ["ann@example.org", "Ann", "bob"]
publish = ["users/%u"]
"""


@pytest.mark.parametrize(("where", "name"), [("san", "ann@example.org"), ("subject", "Ann")])
def test_a_certificate_is_a_user(tmp_path: Path, where: str, name: str) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    chain = authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem
    chain.write_to_path(str(tmp_path / "server.pem"))
    shown = authority.issue_cert("ann@example.org", common_name="Ann").private_key_and_cert_chain_pem
    shown.write_to_path(str(tmp_path / "ann.pem"))
    write_users(tmp_path / "users", [User("bob", hash_password("secret"))])
    tls = f"[tls]\ncertificate = 'server.pem'\nclient_ca = 'ca.pem'\ncertificate_user = '{where}'\n"
    (tmp_path / "pyrite.toml").write_text(tls + RULES)
    listen = ("--listen=mqtts://127.0.0.1:0", "--listen=wss://127.0.0.1:0", "--ephemeral")
    with BrokerProcess("--config", "pyrite.toml", *listen, cwd=tmp_path) as broker:
        trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        showing = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        showing.load_cert_chain(str(tmp_path / "ann.pem"))
        for url in broker.urls:
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
