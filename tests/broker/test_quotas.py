"""Quotas: what one user may use, and what is left for the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pyrite.broker.access import Accept, Access, Credentials
from pyrite.broker.limits import Limits
from pyrite.broker.quotas import Quota, QuotaOptions
from pyrite.protocols.mqtt.packets import V311, Ack, Publish, encode
from pyrite.storage.options import StreamOptions
from tests.support.core import Client, Core
from tests.support.durable import Machine, quick_folder
from tests.support.quotas import Named, quotas, recount, usage

QUOTA_EXCEEDED = 0x97


def connect(core: Core, user: str, client_id: str, version: int = 5, **wishes: Any) -> tuple[Client, int]:
    client = core.wire(version)
    wishes.setdefault("clean_start", False)
    if version == 5:
        wishes.setdefault("session_expiry", 3_600)
    return client, client.connect(client_id, username=user, password=b"x", **wishes).reason


def let_in(core: Core, user: str, client_id: str, version: int = 5, **wishes: Any) -> Client:
    client, reason = connect(core, user, client_id, version, **wishes)
    assert reason == 0
    return client


def settle(core: Core) -> None:
    """Give interrupted clients turns until none is left."""
    while core.broker.turns.has_work:
        core.broker.turns.take()
        core.broker.output.flush()


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as path:
        yield path


# Sessions and connections


def test_sessions_of_one_user_are_limited() -> None:
    core = Core(Limits(max_sessions=4), Named())
    for number in range(2):
        let_in(core, "ann", f"ann-{number}").disconnect()
    third, reason = connect(core, "ann", "ann-2")
    assert reason == QUOTA_EXCEEDED
    assert third.connack is not None
    assert third.connack.properties["reason_string"] == (
        "quota exceeded: sessions of user 'ann': 2 in use, at most 2 allowed"
    )
    assert third.closed
    let_in(core, "bob", "bob-0")
    let_in(core, "ann", "ann-0")  # her own session is there already


def test_connections_of_one_user_are_limited() -> None:
    core = Core(Limits(max_connections=4), Named())
    first = let_in(core, "ann", "ann-0")
    let_in(core, "ann", "ann-1")
    assert connect(core, "ann", "ann-2")[1] == QUOTA_EXCEEDED
    let_in(core, "ann", "ann-1")  # in place of her own
    let_in(core, "bob", "bob-0")
    first.disconnect()
    let_in(core, "ann", "ann-2")


def test_a_3_1_1_client_over_its_quota_is_refused_as_server_unavailable() -> None:
    core = Core(Limits(max_sessions=2), Named())
    let_in(core, "ann", "ann-0", V311)
    assert connect(core, "ann", "ann-1", V311)[1] == 3


def test_a_takeover_moves_the_session_to_the_new_users_quota() -> None:
    core = Core(access=Named(), quotas=quotas(bob=Quota(sessions=1, subscriptions=1)))
    ann = let_in(core, "ann", "shared")
    ann.subscribe("a", "b")
    assert connect(core, "bob", "shared")[1] == QUOTA_EXCEEDED, "it has more subscriptions than bob may have"
    ann.unsubscribe("a")
    let_in(core, "bob", "shared")
    used = usage(core.broker)
    assert "user:ann" not in used
    assert (used["user:bob"]["sessions"], used["user:bob"]["subscriptions"]) == (1, 1)


def test_anonymous_clients_are_counted_by_address_except_on_this_machine() -> None:
    core = Core(Limits(max_sessions=4))
    for number in range(2):
        assert core.wire().connect(f"far-{number}").reason == 0
    far = Client(core, address="192.0.2.1")
    assert far.connect("a", session_expiry=9, username="one").reason == 0
    far = Client(core, address="192.0.2.1")
    assert far.connect("b", session_expiry=9, username="other").reason == 0
    assert usage(core.broker)["address:192.0.2.1"]["sessions"] == 2, "names prove nothing here"
    core.broker.limits.max_sessions = 100
    far = Client(core, address="192.0.2.1")
    assert far.connect("c").reason == QUOTA_EXCEEDED
    for number in range(10):
        assert core.wire().connect(f"near-{number}").reason == 0


# Subscriptions, consumers, retained messages


def test_subscriptions_of_all_sessions_of_a_user_are_counted() -> None:
    core = Core(access=Named(), quotas=quotas(Quota(subscriptions=3)))
    one, other = let_in(core, "ann", "one"), let_in(core, "ann", "other")
    assert one.subscribe("a", "b") == [0, 0]
    assert other.subscribe("a", "b") == [0, QUOTA_EXCEEDED]
    assert one.subscribe("a") == [0], "one that is there is replaced"
    assert let_in(core, "bob", "bob").subscribe("a", "b", "c", "d") == [0, 0, 0, QUOTA_EXCEEDED]
    one.unsubscribe("a")
    assert other.subscribe("b") == [0]
    old = let_in(core, "ann", "old", V311)
    assert old.subscribe("c") == [0x80]


def ask(client: Client, name: str, action: str, payload: bytes = b"") -> dict[str, str]:
    client.publish(f"$pyrite/consumers/{name}/{action}", payload, response_topic="answers")
    client.core.flush()
    return dict(client.messages()[-1].properties["user_property"])


def test_consumers_of_one_user_are_limited(folder: Path) -> None:
    machine = Machine(folder, access=Named(), quotas=quotas(ann=Quota(consumers=2)))
    ann, bob = let_in(machine.core, "ann", "a"), let_in(machine.core, "bob", "b")
    assert [ask(ann, f"ann-{number}", "create").get("pyrite-error") for number in range(3)] == [
        None,
        None,
        "quota exceeded: consumers of user 'ann': 2 in use, at most 2 allowed",
    ]
    assert "pyrite-error" not in ask(ann, "ann-1", "create"), "it is there"
    assert "pyrite-error" not in ask(bob, "bob-0", "create")
    machine.stop()
    machine.start()
    ann = let_in(machine.core, "ann", "a")
    assert "quota exceeded" in ask(ann, "ann-2", "create")["pyrite-error"]
    ask(ann, "ann-0", "delete")
    assert "pyrite-error" not in ask(ann, "ann-2", "create")
    machine.abandon()


def test_the_total_bytes_of_retained_messages_are_limited() -> None:
    core = Core(Limits(retained_bytes=1_000))
    client = core.connect("c")

    def retain(topic: str, size: int) -> int:
        client.publish(topic, bytes(size), qos=1, retain=True)
        return client.only(Ack).reason

    assert retain("a", 600) in (0, 0x10)
    assert retain("b", 600) == QUOTA_EXCEEDED
    assert retain("b", 300) in (0, 0x10)
    assert retain("a", 700) == QUOTA_EXCEEDED, "in place of a smaller one"
    assert retain("a", 0) in (0, 0x10)
    assert retain("b", 900) in (0, 0x10)
    assert core.broker.retained.bytes == 901


def test_retained_messages_of_one_user_are_limited_by_bytes_and_number() -> None:
    core = Core(access=Named(), quotas=quotas(Quota(retained_messages=2, retained_bytes=1_000)))
    ann, bob = let_in(core, "ann", "a"), let_in(core, "bob", "b")

    def retain(client: Client, topic: str, size: int) -> int:
        client.publish(topic, bytes(size), qos=1, retain=True)
        return client.only(Ack).reason

    assert retain(ann, "a", 600) in (0, 0x10)
    assert retain(ann, "b", 600) == QUOTA_EXCEEDED
    assert retain(bob, "b", 600) in (0, 0x10)
    assert retain(ann, "b", 100) in (0, 0x10), "in place of bob's: it is hers now"
    assert retain(ann, "c", 100) == QUOTA_EXCEEDED
    assert retain(bob, "c", 900) in (0, 0x10)
    used = usage(core.broker)
    assert used["user:ann"]["retained_bytes"] == 702
    assert used["user:bob"]["retained_bytes"] == 901
    ann.publish("d", bytes(600), retain=True)  # QoS 0: it is sent, and not retained
    assert core.broker.figures.retained_refused == 1


# Rates


def test_a_publisher_over_its_rate_waits_and_loses_nothing() -> None:
    core = Core(access=Named(), quotas=quotas(ann=Quota(message_rate=10)))
    reader = let_in(core, "bob", "reader")
    reader.subscribe("#", qos=1)
    ann, other = let_in(core, "ann", "a"), let_in(core, "ann", "other")
    sent = [Publish(b"t", b"%02d" % number, 1, packet_id=number + 1) for number in range(25)]
    ann.send(*sent)
    assert len(reader.finish()) == 10
    assert ann.transport.paused
    other.send(Publish(b"t", b"other", 1, packet_id=1))
    assert other.transport.paused, "it is the user's budget, not the connection's"
    bob = let_in(core, "bob", "b")
    bob.publish("t", b"bob", qos=1)
    assert [one.payload for one in reader.finish()] == [b"bob"]
    received = []
    for _ in range(40):
        core.tick(0.1)
        settle(core)
        received += [one.payload for one in reader.finish()]
    assert sorted(received) == sorted([*(b"%02d" % number for number in range(10, 25)), b"other"])
    assert [one for one in received if one != b"other"] == [b"%02d" % number for number in range(10, 25)]
    assert not ann.transport.paused
    acks = [one.packet_id for one in ann.received() if isinstance(one, Ack)]
    assert acks == list(range(1, 26))
    assert core.broker.figures.messages_dropped == 0


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_average_rate_is_the_configured_rate(qos: int) -> None:
    core = Core(access=Named(), quotas=quotas(ann=Quota(byte_rate=1_000)))
    ann = let_in(core, "ann", "a")
    packet = Publish(b"t", bytes(100), qos, packet_id=1 if qos else 0)
    size = len(encode(packet, 5))
    ann.feed(
        b"".join(
            encode(Publish(b"t", bytes(100), qos, packet_id=qos and number), 5) for number in range(1, 501)
        )
    )
    for _ in range(100):
        core.tick(0.1)
        settle(core)
    taken = core.broker.figures.publish_bytes_received
    assert 10 * 1_000 <= taken <= 11 * 1_000 + 2 * size


def test_a_message_larger_than_the_burst_is_accepted_and_delays_the_next() -> None:
    core = Core(access=Named(), quotas=quotas(ann=Quota(byte_rate=100)))
    ann = let_in(core, "ann", "a", keep_alive=1)
    ann.send(Publish(b"t", bytes(1_000), 1, packet_id=1), Publish(b"t", b"next", 1, packet_id=2))
    assert [one.packet_id for one in ann.received() if isinstance(one, Ack)] == [1]
    for _ in range(80):
        core.tick(0.1)
        settle(core)
    assert ann.received() == [], "it takes ten seconds to make up for it"
    assert not ann.closed, "who is not read from cannot keep its connection alive"
    for _ in range(30):
        core.tick(0.1)
        settle(core)
    assert [one.packet_id for one in ann.received() if isinstance(one, Ack)] == [2]


def test_reconnecting_does_not_renew_the_rate_budget() -> None:
    core = Core(access=Named(), quotas=quotas(ann=Quota(message_rate=5)))
    for number in range(10):
        client = let_in(core, "ann", f"a-{number}", session_expiry=0)
        client.send(*[Publish(b"t", b"x")] * 3)
        client.disconnect()
        core.tick(0.01)
    assert core.broker.figures.publish_received == 5


def test_acknowledgements_are_read_while_the_publisher_is_over_its_rate() -> None:
    core = Core(access=Named(), quotas=quotas(ann=Quota(message_rate=1)))
    ann = let_in(core, "ann", "a")
    ann.send(Publish(b"t", b"1"))
    assert ann.ping(), "only PUBLISH waits"
    ann.send(Publish(b"t", b"2"))
    assert not ann.ping()
    core.tick(1.5)
    settle(core)
    assert ann.transport.written.endswith(b"\xd0\x00")


# What is stored in the log

STREAMS = [StreamOptions("default", retention_age=100.0)]


def stored(machine: Machine, user: str) -> int:
    return usage(machine.core.broker).get(f"user:{user}", {}).get("stored_bytes", 0)


def tell(client: Client, payload: bytes, qos: int = 1) -> list[int]:
    """Publish a message and return the reason codes of its acknowledgements."""
    client.publish("t", payload, qos=qos)
    client.core.flush()
    return [one.reason for one in client.received() if isinstance(one, Ack)]


def test_messages_beyond_the_stored_bytes_of_a_user_are_refused_or_dropped(folder: Path) -> None:
    machine = Machine(folder, STREAMS, access=Named(), quotas=quotas(ann=Quota(stored_bytes=1_000)))
    core = machine.core
    ann, old = let_in(core, "ann", "a"), let_in(core, "ann", "old", V311)
    bob = let_in(core, "bob", "b")
    assert tell(ann, bytes(799)) == [0x10]
    for qos in (1, 2):
        assert tell(ann, bytes(300), qos) == [QUOTA_EXCEEDED]
    assert tell(old, bytes(300)) == [], "3.1.1 knows no way to refuse it: it is not acknowledged"
    assert tell(ann, bytes(300), 0) == []
    assert core.broker.figures.messages_dropped == 1
    assert core.broker.figures.quota_refused == 4
    assert tell(bob, bytes(3_000)) == [0x10]
    assert tell(ann, bytes(199)) == [0x10], "what fits is taken"
    assert stored(machine, "ann") == 1_000
    machine.stop()
    assert [len(row["payload"]) for row in machine.whole_log()] == [799, 3_000, 199]


@pytest.mark.parametrize("end", ["stops", "is killed", "loses its power"])
def test_stored_bytes_survive_a_restart(folder: Path, end: str) -> None:
    machine = Machine(folder, STREAMS, access=Named(), quotas=quotas(ann=Quota(stored_bytes=10_000)))
    ann = let_in(machine.core, "ann", "a")
    brief = let_in(machine.core, "ann", "brief", session_expiry=0)
    assert tell(ann, bytes(1_000)) == [0x10]
    machine.tick(3)
    assert tell(ann, bytes(2_000)) == [0x10]
    assert tell(brief, bytes(3_000)) == [0x10]
    if end == "stops":
        machine.stop()
    else:
        machine.crash(keep=end == "is killed")
    machine.start()
    assert stored(machine, "ann") == 6_003
    machine.restart()
    assert stored(machine, "ann") == 6_003
    machine.abandon()


def test_stored_bytes_are_freed_by_retention(folder: Path) -> None:
    machine = Machine(folder, STREAMS, access=Named(), quotas=quotas(ann=Quota(stored_bytes=1_000)))
    ann = let_in(machine.core, "ann", "a")
    assert tell(ann, bytes(999)) == [0x10]
    assert tell(ann, bytes(9)) == [QUOTA_EXCEEDED]
    for _ in range(3):
        machine.tick(100)
    machine.tick(3)
    assert stored(machine, "ann") == 0
    assert tell(ann, bytes(999)) == [0x10]
    machine.restart()
    assert stored(machine, "ann") == 1_000
    machine.abandon()


def test_accounting_of_many_messages_takes_little_memory(folder: Path) -> None:
    machine = Machine(folder, STREAMS, access=Named(), quotas=quotas(Quota(stored_bytes=10**9)))
    account = machine.core.broker.quotas.account_of(Credentials("", "ann", None, ""))
    (stream,) = machine.journal.streams
    for number in range(10_000):
        account.store(stream, number + 1, 10 + number % 7)
    assert account.stored_bytes == sum(10 + number % 7 for number in range(10_000))
    assert sum(span.size for span in account.stored[stream]) == account.stored_bytes
    assert len(account.stored[stream]) <= 32
    machine.abandon()


# Which quota applies


def test_the_most_specific_quota_wins_for_each_key() -> None:
    options = QuotaOptions(
        Quota(sessions=1, connections=2, subscriptions=3),
        {"ann": Quota(sessions=inf)},
        {"small": Quota(sessions=5, connections=6), "large": Quota(connections=7)},
    )
    core = Core(access=Named(ann="small large", carl="small"), quotas=options)

    def limits(user: str) -> list[float]:
        account = core.broker.quotas.account_of(Credentials("", user, None, "192.0.2.1"))
        return [account.limits[name] for name in ("sessions", "connections", "subscriptions", "consumers")]

    assert limits("ann") == [inf, 7, 3, 5_000]
    assert limits("carl") == [5, 6, 3, 5_000]
    assert limits("bob") == [1, 2, 3, 5_000]


def test_new_quotas_apply_to_connected_clients_at_once() -> None:
    core = Core(access=Named())
    ann = let_in(core, "ann", "a")
    ann.send(*[Publish(b"t", b"x")] * 50)
    core.broker.quotas.replace(quotas(ann=Quota(message_rate=10, subscriptions=1)))
    ann.connection.rights_changed()  # as the server tells every connection
    ann.send(*[Publish(b"t", b"x")] * 50)
    assert ann.transport.paused
    assert core.broker.figures.publish_received == 60
    core.broker.quotas.replace(QuotaOptions())
    core.tick(0.2)
    settle(core)
    assert not ann.transport.paused
    assert core.broker.figures.publish_received == 100
    assert ann.subscribe("a", "b") == [0, 0]


def test_an_unused_account_is_forgotten() -> None:
    core = Core(access=Named(), quotas=quotas(Quota(message_rate=10)))
    for number in range(20):
        client = let_in(core, f"user-{number}", f"c-{number}", session_expiry=0)
        client.publish("t", b"x")
        client.disconnect()
    core.tick(1)
    core.tick(1)
    assert not core.broker.quotas.accounts


# Whatever happens


class Clumsy(Access):
    """Accepts every user name; no user is in a group."""

    def authenticate(self, credentials: Credentials) -> Accept:
        return Accept(username=credentials.username)


@pytest.mark.parametrize("seed", range(4))
def test_usage_equals_a_recount(folder: Path, seed: int) -> None:
    """The accounts agree with a recount after random actions, restarts and crashes."""
    random = Random(seed)
    limit = Quota(sessions=4, subscriptions=6, consumers=2, retained_bytes=900, stored_bytes=20_000)
    machine = Machine(folder, access=Clumsy(), quotas=quotas(limit))
    users, topics = ("ann", "bob", "carl"), ("a/1", "a/2", "b/1", "b/2")
    clients: dict[str, Client] = {}
    user_of: dict[str, str] = {}

    def check() -> None:
        broker = machine.core.broker
        machine.core.flush()
        assert usage(broker) == recount(broker, machine.whole_log())

    for step in range(120):
        name = f"c-{random.randrange(6)}"
        client = clients.get(name)
        action = random.randrange(12)
        if client is None or client.closed or action == 0:
            user = random.choice(users)
            client, reason = connect(
                machine.core,
                user,
                name,
                clean_start=random.random() < 0.3,
                session_expiry=random.choice((0, 30, 3_600)),
            )
            assert reason in (0, QUOTA_EXCEEDED)
            clients.pop(name, None)
            if reason == 0:
                clients[name] = client
                user_of[name] = user
        elif action <= 2:
            client.subscribe(random.choice(("a/+", "b/#", "$share/g/#", "a/1")), qos=random.randrange(3))
        elif action == 3:
            client.unsubscribe(random.choice(("a/+", "b/#", "$share/g/#", "a/1")))
        elif action <= 7:
            payload = user_of[name].encode() + bytes(random.choice((0, 100, 400)))
            client.publish(random.choice(topics), payload, random.randrange(3), random.random() < 0.6)
        elif action == 8:
            body = json.dumps({"filter": "#"}).encode()
            kind = random.choice(("create", "create", "delete"))
            client.publish(f"$pyrite/consumers/n-{random.randrange(4)}/{kind}", body, response_topic="r")
        elif action == 9:
            (client.disconnect if random.random() < 0.5 else client.drop)()
            del clients[name]
        elif action == 10 and step % 2:
            machine.core.broker.catalog.delete(random.choice(topics).encode())
        elif action == 10:
            machine.tick(random.choice((1, 40)))
        elif step % 3 == 0:
            if random.random() < 0.5:
                machine.stop()
            else:
                machine.core.flush()
                machine.crash(keep=True)
            machine.start()
            clients.clear()
        if step % 10 == 0:
            check()
    check()
    machine.abandon()
