"""JSON Web Tokens instead of passwords."""

from __future__ import annotations

import hmac
import json
import socket
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from pyrite.access.options import AccessError
from pyrite.access.tokens import LEEWAY, Bearer, Tokens
from pyrite.client import BlockingClient, ClientError, FlightLog
from pyrite.client.line import LineClient
from pyrite.storage.query import Query
from tests.conformance.wire import connect_packet
from tests.support.process import BrokerProcess
from tests.support.waiting import wait_until

SECRET = "0123456789abcdef" * 4
RSA_KEY = rsa.generate_private_key(65_537, 2_048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
SIGNING: dict[str, tuple[Any, str]] = {
    "hs": (SECRET, "HS256"),
    "rs": (RSA_KEY, "RS256"),
    "es": (EC_KEY, "ES256"),
}


def keys(path: Path, *names: str) -> Path:
    """Write a JWKS file."""
    encoded = jwt.utils.base64url_encode(SECRET.encode()).decode()
    every = {
        "hs": {"kty": "oct", "k": encoded, "alg": "HS256"},
        "rs": json.loads(RSAAlgorithm.to_jwk(RSA_KEY.public_key())) | {"alg": "RS256"},
        "es": json.loads(ECAlgorithm.to_jwk(EC_KEY.public_key())) | {"alg": "ES256"},
    }
    path.write_text(json.dumps({"keys": [every[name] | {"kid": name} for name in names]}))
    return path


def token(key: str, kid: str | None = None, **claims: Any) -> str:
    secret, algorithm = SIGNING[key]
    claims = {"sub": "ann", "exp": time.time() + 60, "groups": ["ops"]} | claims
    headers = {"kid": kid or key}
    return jwt.encode({k: v for k, v in claims.items() if v is not None}, secret, algorithm, headers)


def checker(path: Path, audience: str = "", issuer: str = "") -> Tokens:
    return Tokens(path, audience, issuer, "sub", "groups")


@pytest.mark.parametrize("key", SIGNING)
def test_valid_tokens_are_accepted(tmp_path: Path, key: str) -> None:
    tokens = checker(keys(tmp_path / "keys", "hs", "rs", "es"), "pyrite", "me")
    good = token(key, aud="pyrite", iss="me", exp=2_000_000_000)
    bearer = tokens.check(good.encode())
    assert bearer is not None
    assert bearer.proof in tokens.proofs
    assert bearer == Bearer("ann", frozenset({"ops"}), 2_000_000_000 + LEEWAY, bearer.proof)


def test_invalid_tokens_are_refused(tmp_path: Path) -> None:
    tokens = checker(keys(tmp_path / "keys", "hs", "rs"), "pyrite", "me")
    fine = {"aud": "pyrite", "iss": "me"}
    unsigned = jwt.encode({"sub": "ann", "exp": time.time() + 60, **fine}, "", "none", {"kid": "rs"})
    head, body, _ = token("hs", kid="rs", **fine).split(".")
    public = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signature = hmac.digest(public, f"{head}.{body}".encode(), "sha256")
    confused = f"{head}.{body}.{jwt.utils.base64url_encode(signature).decode()}"
    for bad in (
        token("hs", exp=time.time() - 60, **fine),
        token("hs", exp=None, **fine),
        token("hs", sub=None, **fine),
        token("hs", sub=3, **fine),
        token("hs", sub="\ud800", **fine),
        token("hs", exp=10**400, **fine),
        token("hs", groups="ops", **fine),
        token("hs", aud="other", iss="me"),
        token("hs", aud="pyrite", iss="you"),
        token("es", **fine),
        token("hs", kid="rs", **fine),
        unsigned,
        confused,
        "no.token.atall",
        "",
    ):
        assert tokens.check(bad.encode()) is None, bad
    assert tokens.check(b"\xff\xfe") is None


def test_an_invalid_key_file_is_an_error(tmp_path: Path) -> None:
    a_key = '{"kty": "oct", "k": "MDEyMzQ1Njc4OWFiY2RlZg", "kid": []}'
    for text in (
        "",
        "{}",
        '{"keys": []}',
        '{"keys": [{"kty": "none"}]}',
        a_key,
        f"[{a_key}]",
        f'{{"keys": [{a_key}]}}',
        "null",
        "[" * 100_000,
    ):
        (tmp_path / "keys").write_text(text)
        with pytest.raises(AccessError, match="expected a set of keys"):
            checker(tmp_path / "keys")
    with pytest.raises(AccessError, match="No such file"):
        checker(tmp_path / "none")


def test_a_short_secret_is_an_error(tmp_path: Path) -> None:
    for algorithm, least in (("HS256", 32), ("HS384", 48), ("HS512", 64)):
        for size in (least - 1, least):
            secret = jwt.utils.base64url_encode(b"x" * size).decode()
            key = {"kty": "oct", "k": secret, "alg": algorithm, "kid": "one"}
            (tmp_path / "keys").write_text(json.dumps({"keys": [key]}))
            if size == least:
                checker(tmp_path / "keys")
                continue
            with pytest.raises(
                AccessError, match=f"'one' has {size} bytes and could be guessed: .* needs at least {least}"
            ):
                checker(tmp_path / "keys")


def test_keys_without_unique_names_are_an_error(tmp_path: Path) -> None:
    path = keys(tmp_path / "keys", "hs", "es")
    for wrong in (path.read_text().replace("kid", "id"), path.read_text().replace('"hs"', '"es"')):
        path.write_text(wrong)
        with pytest.raises(AccessError, match="expected a distinct name"):
            checker(path)


def test_a_broker_accepts_tokens_over_mqtt_and_flight(tmp_path: Path) -> None:
    keys(tmp_path / "keys", "es")
    rule = "[[access.rule]]\ngroups = ['ops']\npublish = ['users/%u']\npull = ['users/%u']\n"
    (tmp_path / "pyrite.toml").write_text("[access]\njwt_keys = 'keys'\n" + rule)
    listen = ("--listen=mqtt://127.0.0.1:0", "--listen=flight://127.0.0.1:0", "--data=data")
    with BrokerProcess("--config", "pyrite.toml", *listen, cwd=tmp_path) as broker:
        with BlockingClient(broker.urls[0], username="ann", password=token("es")) as client:
            client.publish("users/ann", b"x", qos=1)
            with pytest.raises(ClientError, match="not authorized"):
                client.publish("users/bob", b"x", qos=1)
        for name, word in (("bob", token("es")), ("ann", token("es", groups=None)[:-2]), ("ann", "")):
            with pytest.raises(ClientError):
                BlockingClient(broker.urls[0], username=name, password=word).connect()
        with FlightLog(broker.urls[1], token=token("es")) as log:
            assert log.table(Query(topics=("users/ann",))).num_rows == 1
            with pytest.raises(PermissionError):
                log.table(Query(topics=("users/#",)))


def test_a_connection_ends_when_its_token_expires(tmp_path: Path) -> None:
    keys(tmp_path / "keys.json", "hs")
    (tmp_path / "pyrite.toml").write_text(
        "[access]\njwt_keys = 'keys.json'\n[[access.rule]]\nusers = ['*']\nsubscribe = ['#']\n"
    )
    listen = [f"--listen={scheme}://127.0.0.1:0" for scheme in ("mqtt", "line")]
    with BrokerProcess("--config", "pyrite.toml", "--ephemeral", *listen, cwd=tmp_path) as broker:
        brief, longer = token("hs", exp=time.time() + 2 - LEEWAY), token("hs")
        with (
            LineClient("127.0.0.1", broker.port(1)) as gone,
            LineClient("127.0.0.1", broker.port(1)) as there,
        ):
            gone.connect("gone", user="ann", password=brief)
            there.connect("there", user="ann", password=longer)
            with socket.create_connection(("127.0.0.1", broker.port()), timeout=30) as over_mqtt:
                over_mqtt.sendall(connect_packet("mqtt", username="ann", password=brief.encode()))
                assert over_mqtt.recv(1_000)[0] == 0x20
                assert over_mqtt.recv(1_000)[:3:2] == b"\xe0\x87", "DISCONNECT, not authorized"
                assert over_mqtt.recv(1_000) == b""
            wait_until(lambda: gone.closed, "the line connection is closed")
            there.subscribe("a")
