"""One set of access rules for all protocols: every user, action and topic, on a real broker."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import jwt
import pyarrow as pa
import pytest
import trustme

from pyrite.access.users import User, hash_password, write_users
from pyrite.client import BlockingClient, ClientError, FlightLog
from pyrite.client.line import LineClient, LineError
from pyrite.server.access import read_access_list
from pyrite.server.config import ConfigError, load
from pyrite.storage.query import Query, QueryError
from tests.support.passwords import quick_hash
from tests.support.process import BrokerProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

CONFIG = """
[tls]
certificate = "server.pem"
client_ca = "ca.pem"
require_client_certificate = true
certificate_user = "san"

[access]
users = "users"
jwt_keys = "keys"
anonymous = true

[[access.rule]]
users = ["ann"]
publish = ["#"]
subscribe = ["#", "$SYS/#"]
pull = ["#"]
admin = ["#"]

[[access.rule]]
groups = ["sensors"]
users = ["cat"]
publish = ["sensors/%u/#"]
subscribe = ["public/#"]

[[access.rule]]
users = ["*"]
publish = ["devices/%c/#"]

[[access.rule]]
users = ["pia"]
pull = ["public/#"]

[[access.rule]]
users = ["anonymous"]
subscribe = ["public/#"]
"""
SCHEMES = ("mqtt", "ws", "line", "udp", "flight", "http")
ENCRYPTED = {"mqtts": "mqtt", "wss": "ws", "flights": "flight", "https": "http"}
"""Schemes that need a certificate, and their protocols."""
KEY = "0123456789abcdef" * 4
TOKEN = jwt.encode(
    {"sub": "tim", "exp": time.time() + 3_600, "groups": ["sensors"]}, KEY, "HS256", {"kid": "one"}
)
NAMES = {
    "ann": "word-of-ann",
    "bob": "word-of-bob",
    "eve": "word-of-eve",
    "pia": "word-of-pia",
    "tim": TOKEN,
    None: None,
}
"""Users, and the password or token of each."""
CAT = "cat"
"""A user with a certificate only."""
AUTHORITY = trustme.CA()
CERTIFICATE = AUTHORITY.issue_cert(CAT).private_key_and_cert_chain_pem
TOPICS = (
    "sensors/bob/t",
    "sensors/tim/t",
    f"sensors/{CAT}/t",
    "devices/tim-id/t",
    f"devices/{CAT}-id/t",
    "public/news",
    "private",
)
ACTIONS = {
    "mqtt": ("publish", "subscribe", "past", "list", "pull", "admin"),
    "ws": ("publish", "subscribe", "past", "list", "pull", "admin"),
    "line": ("publish", "subscribe", "past", "list", "pull", "admin"),
    "udp": ("publish", "subscribe", "past", "list", "pull", "admin"),
    "flight": ("publish", "pull"),
    "http": ("publish", "list", "pull", "admin"),
}
MAY = {
    ("bob", "publish"): ("sensors/bob/t",),
    ("tim", "publish"): ("sensors/tim/t", "devices/tim-id/t"),
    (CAT, "publish"): (f"sensors/{CAT}/t", f"devices/{CAT}-id/t"),
    ("pia", "pull"): ("public/news",),
} | {
    (name, action): ("public/news",) for name in ("bob", "tim", CAT, None) for action in ("subscribe", "list")
}
"""What is allowed, but to ann, who may do everything. The past is for who may subscribe and pull. And eve has
a password, and no rights at all."""


def may(spoken: str, name: str | None, action: str, topic: str) -> bool:
    if topic.startswith("devices/") and spoken in ("flight", "http") and name != "ann":
        return False  # clients have no id there
    return name == "ann" or topic in MAY.get((name, action), ())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("access")
    write_users(
        folder / "users",
        [
            User("ann", quick_hash("word-of-ann")),
            User("bob", quick_hash("word-of-bob"), frozenset({"sensors"})),
            User("dan", hash_password("word-of-dan")),  # takes as long as in earnest
            User("eve", quick_hash("word-of-eve")),
            User("pia", quick_hash("word-of-pia")),
            User("zoe", quick_hash("word-of-zoe")),
        ],
    )
    key = {"kty": "oct", "k": jwt.utils.base64url_encode(KEY.encode()).decode(), "alg": "HS256", "kid": "one"}
    (folder / "keys").write_text(json.dumps({"keys": [key]}))
    (folder / "pyrite.toml").write_text(CONFIG)
    AUTHORITY.cert_pem.write_to_path(str(folder / "ca.pem"))
    chain = AUTHORITY.issue_cert("127.0.0.1").private_key_and_cert_chain_pem
    chain.write_to_path(str(folder / "server.pem"))
    listen = [f"--listen={scheme}://127.0.0.1:0" for scheme in (*SCHEMES, *ENCRYPTED)]
    with BrokerProcess("--config", "pyrite.toml", *listen, "--data", "data", cwd=folder) as broker:
        with BlockingClient(broker.urls[0], username="ann", password="word-of-ann") as client:
            for topic in TOPICS:
                client.publish(topic, b"x", qos=1, retain=True)
        for name, word in {**NAMES, "dan": "word-of-dan"}.items():
            with BlockingClient(broker.urls[0], username=name, password=word):
                pass  # known users are not locked out by the guesses below
        yield broker
        with httpx.Client(base_url=broker.urls[5], auth=("ann", "word-of-ann")) as web:
            told = [web.get("/metrics").text, *broker.log]
        with (
            BlockingClient(broker.urls[0], username="ann", password="word-of-ann") as client,
            client.subscribe("$SYS/#") as messages,
        ):
            told += [f"{message.topic} {message.payload!r}" for message in islice(messages, 20)]
        secrets = ("word-of", "guess-of", TOKEN)
        assert not [one for one in told if any(secret in one for secret in secrets)], "no password is told"


def showing() -> ssl.SSLContext:
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    with CERTIFICATE.tempfile() as shown:
        context.load_cert_chain(shown)
    return context


# Each does something in one protocol, or with "come in" nothing but that; and raises one of REFUSALS. What is
# published says by whom.


def mqtt(broker: BrokerProcess, url: str, name: str | None, action: str, topic: str) -> None:
    who: dict[str, Any] = {"username": name, "password": NAMES.get(name)}
    if name == CAT:
        who = {"tls": showing()}
    with BlockingClient(url, client_id=f"{name}-id" if name else None, **who) as client:
        if action == "publish":
            client.publish(topic, payload(url, name), qos=0)  # refused without an answer
            client.publish(topic, payload(url, name), qos=1)
        elif action == "subscribe":
            client.subscribe(topic, qos=1).close()
        elif action == "past":
            client.subscribe(topic, qos=1, start="earliest").close()
        elif action == "list":
            assert [one.name for one in client.topics(topic)] == [topic]
        elif action == "pull":
            client.consumer(f"{name}-{topic.replace('/', '-')}", topic)
        elif action == "admin":
            client.create_topic(f"{topic}/new")
            client.delete_topic(f"{topic}/new")


def line(broker: BrokerProcess, url: str, name: str | None, action: str, topic: str) -> None:
    udp = url.startswith("udp")
    port = broker.port(SCHEMES.index("udp" if udp else "line"))
    with LineClient("127.0.0.1", port, udp=udp) as client:
        if name is not None:
            client.connect(f"{name}-id", user=name, password=NAMES[name])
        if action == "publish":
            client.publish(topic, payload(url, name))
        elif action == "subscribe":
            client.subscribe(topic)
        elif action == "past":
            client.subscribe(topic, start="earliest")
        elif action == "list":
            assert [one for one, _ in client.topics(topic)] == [topic]
        elif action == "pull":
            client.register(f"line-{name}-{topic.replace('/', '-')}", topic)
        elif action == "admin":
            client.create(f"{topic}/new")
            client.delete(f"{topic}/new")


def flight(broker: BrokerProcess, url: str, name: str | None, action: str, topic: str) -> None:
    with contextlib.ExitStack() as stack:
        if name == CAT:
            authority = stack.enter_context(AUTHORITY.cert_pem.tempfile())
            shown = stack.enter_context(CERTIFICATE.tempfile())
            log = FlightLog(url, ca_file=authority, cert_file=shown)
        elif NAMES[name] == TOKEN:
            log = FlightLog(url, token=TOKEN)
        else:
            log = FlightLog(url, username=name, password=NAMES[name])
        stack.enter_context(log)
        if action == "pull":
            log.table(Query(topics=(topic,)))
        elif action == "publish":
            rows = pa.record_batch({"topic": [topic], "payload": pa.array([payload(url, name)], pa.binary())})
            sink = f"{name}-{topic.replace('/', '-')}"
            log.commit(sink, time.monotonic_ns(), log.stage(sink, "part", rows.schema, [rows]).parts)
        else:
            log.streams()


def http(broker: BrokerProcess, url: str, name: str | None, action: str, topic: str) -> None:
    word = NAMES.get(name)
    auth = None if word is None or word == TOKEN else (name or "", word)
    headers = {"Authorization": f"Bearer {TOKEN}"} if word == TOKEN else {}
    verify = showing() if name == CAT else True
    with httpx.Client(base_url=url, auth=auth, headers=headers, verify=verify) as client:
        if action == "publish":
            said = payload(url, name).decode()
            answer = client.post("/api/v1/publish", json={"topic": topic, "payload": said})
        elif action == "list":
            answer = client.get("/api/v1/topics", params={"filter": topic})
            assert client.get(f"/api/v1/topics/{topic}").status_code == answer.status_code
        elif action == "pull":
            answer = client.get("/api/v1/streams/default/messages", params={"filter": topic})
            consumer = f"/api/v1/consumers/http-{name}-{topic}/pull"
            assert client.post(consumer, json={"filter": topic}).status_code == answer.status_code
        elif action == "admin":
            answer = client.put(f"/api/v1/topics/{topic}/new")
            gone = client.delete(f"/api/v1/topics/{topic}/new")
            assert (gone.status_code == 403) is (answer.status_code == 403)
        else:
            answer = client.get("/api/v1/streams")
    if answer.status_code in (401, 403, 429):
        raise PermissionError(answer.status_code, answer.json()["detail"])
    assert answer.status_code in (200, 201, 204), answer.text


def payload(url: str, name: str | None) -> bytes:
    return f"{url} {name}".encode()


WAYS: dict[str, Callable[[BrokerProcess, str, str | None, str, str], None]] = {
    "mqtt": mqtt,
    "ws": mqtt,
    "line": line,
    "udp": line,
    "flight": flight,
    "http": http,
}
REFUSALS = (ClientError, LineError, PermissionError, QueryError)
NOT_AUTHORIZED = {"mqtt": 0x87, "ws": 0x87, "line": "not-authorized", "udp": "not-authorized", "http": 403}
ANSWERS = ("list", "pull", "admin")
"""Requests that MQTT clients send as messages; the answers have no code."""


def code_of(error: BaseException) -> object:
    """Return the code of a refusal in its protocol; None if the protocol has text alone."""
    if isinstance(error, PermissionError):
        return error.errno
    return error.code if isinstance(error, LineError) else getattr(error, "reason", None)


@pytest.mark.parametrize(
    ("scheme", "name"),
    [(scheme, name) for scheme in SCHEMES for name in NAMES] + [(scheme, CAT) for scheme in ENCRYPTED],
)
def test_every_user_may_do_what_the_rules_allow(broker: BrokerProcess, scheme: str, name: str | None) -> None:
    url, spoken = broker.urls[[*SCHEMES, *ENCRYPTED].index(scheme)], ENCRYPTED.get(scheme, scheme)
    do = partial(WAYS[spoken], broker, url, name)
    do("come in", "")  # so refusals below are about the action
    for action in ACTIONS[spoken]:
        for topic in TOPICS:
            if may(spoken, name, action, topic):
                do(action, topic)
                continue
            with pytest.raises(REFUSALS, match=r"(?i)not authorized") as caught:
                do(action, topic)
            expected = None if spoken in ("mqtt", "ws") and action in ANSWERS else NOT_AUTHORIZED.get(spoken)
            assert code_of(caught.value) == expected
    with FlightLog(broker.urls[4], username="ann", password="word-of-ann") as log:
        kept = log.table(Query()).to_pylist()
    published = {row["topic"] for row in kept if row["payload"] == payload(url, name)}
    assert published == {topic for topic in TOPICS if may(spoken, name, "publish", topic)}


@pytest.mark.parametrize("name", NAMES, ids=str)
def test_listing_and_disconnecting_clients_needs_permission(broker: BrokerProcess, name: str | None) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"} if NAMES[name] == TOKEN else {}
    auth = None if name is None or headers else (name, NAMES[name] or "")
    with (
        BlockingClient(
            broker.urls[0], client_id="watched", username="ann", password="word-of-ann"
        ) as watched,
        httpx.Client(base_url=broker.urls[5], auth=auth, headers=headers) as web,
    ):
        watched.publish("private", b"x", qos=1)
        found = [
            web.get("/api/v1/clients").status_code,
            web.get("/api/v1/clients/watched").status_code,
            web.delete("/api/v1/clients/watched").status_code,
        ]
    assert found == ([200, 200, 204] if name == "ann" else [403, 403, 403])


@pytest.mark.parametrize("name", ["zoe", "mallory"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_wrong_password_is_refused(broker: BrokerProcess, scheme: str, name: str) -> None:
    """The answer does not tell whether the user exists; after too many guesses, none is checked."""
    url = broker.urls[SCHEMES.index(scheme)]
    NAMES[name] = "guess-of-anyone"
    try:
        with pytest.raises(REFUSALS, match=r"(?i)password|too many failed log-ins") as caught:
            WAYS[scheme](broker, url, name, "come in", "")
        expected = {"mqtt": (0x86, 0x9F), "ws": (0x86, 0x9F), "http": (401, 429)}.get(scheme)
        assert expected is None or code_of(caught.value) in expected
        assert "guess-of" not in str(caught.value)
    finally:
        del NAMES[name]
    WAYS[scheme](broker, url, "ann", "publish", "public/news")  # a known user is still let in


def test_a_client_refused_over_udp_has_no_identity_until_accepted(broker: BrokerProcess) -> None:
    def refused(client: LineClient) -> None:
        # After failures of other tests, an unknown name would not be checked, so no name is told it is wrong.
        with pytest.raises(LineError, match=r"wrong|too many failed log-ins"):
            client.connect("again", user="bob", password="guess-of-again")

    port = broker.port(SCHEMES.index("udp"))
    with LineClient("127.0.0.1", port, udp=True) as client:
        client.connect("known", user="bob", password="word-of-bob")
    with LineClient("127.0.0.1", port, udp=True) as client:
        refused(client)
        client.subscribe("public/news")
        with pytest.raises(LineError, match="not authorized: publish 'sensors/bob/t'"):
            client.publish("sensors/bob/t", b"x")
    with LineClient("127.0.0.1", port, udp=True) as client:
        refused(client)
        client.connect("again", user="bob", password="word-of-bob")
        client.publish("sensors/bob/t", b"x")
    assert not [line for line in broker.log if "internal error" in line]


def test_password_checks_do_not_block_other_clients(broker: BrokerProcess) -> None:
    """Many clients log in at once while another is served; no identities are mixed up."""
    sockets: list[socket.socket] = []
    try:
        for number in range(20):
            one = socket.create_connection(("127.0.0.1", broker.port(SCHEMES.index("line"))), timeout=20)
            sockets.append(one)
            name = "ann" if number % 2 else "dan"
            one.sendall(
                f"Connect c{number} user={name} password=word-of-{name}\nPublish private 1\nx\n".encode()
            )
        with LineClient("127.0.0.1", broker.port(SCHEMES.index("line"))) as quick:
            slowest = 0.0
            for _ in range(20):
                began = time.monotonic()
                quick.ping()
                slowest = max(slowest, time.monotonic() - began)
        for number, one in enumerate(sockets):
            expected = [
                f"Ack Connect c{number} new",
                "PubAck private" if number % 2 else "Error not-authorized",
            ]
            got, lines = b"", [""]
            while len(lines) < 3:
                came = one.recv(1_000)
                assert came, f"the connection was closed after {got!r}"
                got += came
                lines = got.decode().replace("Ping\n", "").split("\n")  # the broker pings slow clients
            assert lines[0] == expected[0]
            assert lines[1].startswith(expected[1])
        assert slowest < 5
    finally:
        for one in sockets:
            one.close()


def test_a_client_that_leaves_while_its_password_is_checked(broker: BrokerProcess) -> None:
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", broker.port(SCHEMES.index("line"))), timeout=20) as one:
            one.sendall(b"Connect gone user=dan password=word-of-dan\n")
    with LineClient("127.0.0.1", broker.port(SCHEMES.index("line"))) as client:
        client.connect("after", user="dan", password="word-of-dan")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_wrong_password_is_counted_and_logged(broker: BrokerProcess, scheme: str) -> None:
    def refused() -> int:
        with httpx.Client(base_url=broker.urls[5], auth=("ann", "word-of-ann")) as client:
            found = re.search(r"^pyrite_connections_refused_total (\d+)", client.get("/metrics").text, re.M)
        assert found is not None
        return int(found[1])

    name = f"guesser-{scheme}"
    before = refused()
    NAMES[name] = "guess-of-guesser"
    try:
        with pytest.raises(REFUSALS):
            WAYS[scheme](broker, broker.urls[SCHEMES.index(scheme)], name, "publish", "public/news")
    finally:
        del NAMES[name]
    assert refused() > before
    wait_until(lambda: any("refused" in line and name in line for line in broker.log), "a line in the log")


# Starting


def test_a_broker_reachable_from_other_machines_needs_users(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as caught:
        BrokerProcess("--listen=mqtt://0.0.0.0:0", "--data", str(tmp_path / "data"))
    assert "other machines can connect, but there are no users" in str(caught.value)
    assert "pyrite passwd FILE NAME" in str(caught.value)
    with BrokerProcess("--listen=mqtt://0.0.0.0:0", "--allow-anonymous", "--ephemeral") as broker:
        assert broker.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        (
            "[access]\nusers = 'none'\n",
            "access.users = 'none': expected an existing file",
        ),
        ("[access]\nusers = 'broken'\n", "broken, line 1: expected name:hash"),
        ("[[access.rule]]\npublish = ['#']\n", "[[access.rule]] 1: expected users or groups"),
        ("[[access.rule]]\nusers = ['a']\npublish = ['a/#/b']\n", "publish = 'a/#/b': '#' must be the whole"),
        ("[[access.rule]]\nuser = ['a']\n", "access.rule.user = ['a']: no such key"),
        ("[access]\nrule = 3\n", "access.rule = 3: expected tables, [[access.rule]]"),
    ],
)
def test_invalid_access_settings_are_errors(tmp_path: Path, config: str, wrong: str) -> None:
    (tmp_path / "broken").write_text("x\n")
    (tmp_path / "pyrite.toml").write_text(config)
    with contextlib.chdir(tmp_path), pytest.raises(ConfigError) as caught:
        read_access_list(load(Path("pyrite.toml")).access)
    assert wrong in str(caught.value)


EMPTY = "listen = ['mqtts://0.0.0.0:0']\n[tls]\ncertificate = 'server.pem'\n"


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        (EMPTY + "[access]\nusers = 'empty'\n", "there are no users"),
        (EMPTY + "client_ca = 'ca.pem'\ncertificate_user = 'san'\n", "there are no users"),
        (
            EMPTY + "certificate_user = 'san'\n[access]\nanonymous = true\n",
            'tls.certificate_user = "san": requires tls.client_ca',
        ),
        (
            EMPTY + "client_ca = 'ca.pem'\ncertificate_user = 'san'\nrequire_client_certificate = true\n"
            "[[access.rule]]\nusers = ['*']\npublish = ['#']\n",
            None,
        ),
        ("listen = ['mqtt://ann:lstn-secret@127.0.0.1:0']\n", "'mqtt://(not shown)@127.0.0.1:0': a listener"),
        ("listen = ['mqtt://ann:lstn-secret/x@127.0.0.1:0']\n", "invalid URL"),
        ("[access]\npassword = 'lstn-secret'\n", "access.password = (not shown): no such key"),
        ("[access]\njwt_keys = 'lstn-secret'\n", "access.jwt_keys = (not shown): expected an existing file"),
    ],
)
def test_a_broker_for_a_network_needs_users(tmp_path: Path, config: str, wrong: str | None) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    chain = authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem
    chain.write_to_path(str(tmp_path / "server.pem"))
    (tmp_path / "empty").write_text("# no users\n")
    (tmp_path / "pyrite.toml").write_text(config)
    with contextlib.chdir(tmp_path):
        if wrong is None:
            assert load(Path("pyrite.toml")).listen == ["mqtts://0.0.0.0:0"]
            return
        with pytest.raises(ConfigError) as caught:
            load(Path("pyrite.toml"))
    assert wrong in str(caught.value)
    assert "lstn-secret" not in str(caught.value)
