"""MQTT packets are handled in short turns, in a broker that holds 100,000 of everything."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from pyrite.access.guard import Guard
from pyrite.access.rules import Rule
from pyrite.broker.access import Accept, Access, Credentials
from pyrite.broker.inflight import MAX_MESSAGE_ID
from pyrite.broker.message import Batch
from pyrite.broker.session import NEVER
from pyrite.broker.subscriptions import Subscription
from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.packets import (
    MAX_FILTERS,
    V5,
    V311,
    Ack,
    Auth,
    Connect,
    Disconnect,
    Ping,
    Publish,
    Subscribe,
    Unsubscribe,
    WillMessage,
    Wish,
    encode,
)
from pyrite.topics.filters import split_shared
from tests.hostile.turns import LARGEST_READ, Turns, check, collector_of_the_server
from tests.support.core import Client, Core

THERE = 100_000
"""Topics, retained messages, subscriptions and sessions that are there."""
READERS = 100
"""Connected subscribers of one topic."""
SUBSCRIPTIONS = 10_000
"""As many as one client may have."""
LOADED_SUBSCRIPTIONS = 2_000
"""Subscriptions of a client that ends with as much as possible waiting for it."""
WAITING = 40_000
"""Messages that wait for it, each of its own."""
DIFFERENT = 2_000
"""Packets of a read that differ."""
ENOUGH = 12
"""Turns of one attack after which it is over: some would go on for hours, a turn at a time."""
SEED = 20_261_118

fresh = count()


ALLOWED = ["there/#", "crowd", "shared", "new/#", "kept/#", "made/#"]
ACCESS = {
    V5: Guard({}, [Rule(["anonymous"], publish=ALLOWED, subscribe=["#"], pull=["#"], admin=ALLOWED)], True),
    V311: Access(),
}
"""With rules, and without: what is published takes another way."""


class Crowd(Core):
    """A broker with 100,000 of everything, and a hundred subscribers that read."""

    def __init__(self) -> None:
        super().__init__(clock=time.thread_time)
        broker = self.broker
        for number in range(THERE):
            topic = b"there/%d/%d" % (number % 1_000, number)
            session = broker.sessions.restore(f"there-{number}", NEVER)
            broker.subscribing.restore(topic, Subscription(session, topic, number % 3), None)
            broker.catalog.created[topic] = True
            broker.retained.retain(Batch(topic, b"%d" % number, number % 3))
            broker.subscriptions.route(topic)
        self.readers = [self.connect(f"reader-{number}", receive_maximum=65_535) for number in range(READERS)]
        for number, reader in enumerate(self.readers):
            reader.subscribe("crowd", qos=number % 3)
            if number % 10 == 0:
                reader.subscribe("$share/group/shared", qos=1)
            reader.transport.write = lambda _: None  # type: ignore[method-assign, assignment]
        self.settle()

    def settle(self) -> None:
        """Finish all pending work, and drop what was sent."""
        Turns().finish(self.broker, "settle")


@pytest.fixture(scope="module")
def crowd() -> Iterator[Crowd]:
    gc.disable()
    try:
        core = Crowd()
    finally:
        gc.enable()
    with collector_of_the_server():
        yield core


def read(turns: Turns, client: Client, data: bytes, what: str) -> None:
    """Handle one read completely."""
    turns.take(f"{what}, read", lambda: client.connection.receive(data))
    turns.finish(client.core.broker, what, ENOUGH)
    client.transport.written.clear()


def filled(make: Callable[[int], bytes], size: int = LARGEST_READ) -> bytes:
    """Return numbered packets up to the size of a read; the numbers repeat after a while."""
    parts: list[bytes] = []
    total = 0
    while total < size and len(parts) < DIFFERENT:
        part = make(len(parts))
        parts.append(part)
        total += len(part)
    return (b"".join(parts) * (size // total + 1))[:size]


def message_id(number: int) -> int:
    return number % 65_535 + 1


def properties(size: int) -> dict[str, object]:
    return {"user_property": [("", "")] * size}


def kinds(version: int) -> dict[str, Callable[[int], bytes]]:
    """Return functions that make packets of every kind by number."""

    def publish(topic: bytes, qos: int = 0, payload: bytes = b"", **more: object) -> Callable[[int], bytes]:
        def make(number: int) -> bytes:
            name = topic % number if b"%" in topic else topic
            packet_id = message_id(number) if qos else 0
            return encode(Publish(name, payload, qos, packet_id=packet_id, **more), version)  # type: ignore[arg-type]

        return make

    def request(topic: bytes, payload: bytes = b"", qos: int = 0) -> Callable[[int], bytes]:
        asked = {"response_topic": "answers", "correlation_data": b"x"} if version == V5 else {}
        return publish(b"$pyrite/" + topic, qos, payload, properties=asked)

    def several(kind: type[Subscribe] | type[Unsubscribe], size: int, form: str) -> Callable[[int], bytes]:
        def make(number: int) -> bytes:
            names = [(form % (number * size + at) if "%" in form else form).encode() for at in range(size)]
            if kind is Unsubscribe:
                return encode(Unsubscribe(message_id(number), names), version)
            return encode(Subscribe(message_id(number), [Wish(name, 1) for name in names]), version)

        return make

    found: dict[str, Callable[[int], bytes]] = {
        "ping": lambda _: encode(Ping(fields.PINGREQ), version),
    }
    for name, kind in (("PUBACK", 4), ("PUBREC", 5), ("PUBREL", 6), ("PUBCOMP", 7)):
        found[name] = lambda number, kind=kind: encode(Ack(kind, message_id(number)), version)  # type: ignore[misc]
        if version == V5:
            found[f"{name} with a reason"] = lambda number, kind=kind: encode(  # type: ignore[misc]
                Ack(kind, message_id(number), 0x92 if kind in (6, 7) else 0x80), version
            )
    for qos in (0, 1, 2):
        found[f"QoS {qos} to one"] = publish(b"there/1/1", qos)
        found[f"QoS {qos} to a hundred"] = publish(b"crowd", qos)
        found[f"QoS {qos} to a group"] = publish(b"shared", qos)
        found[f"QoS {qos} to other topics each time"] = publish(b"new/%d", qos)
        found[f"QoS {qos} to topics that are there"] = publish(b"there/1/%d", qos)
        found[f"QoS {qos} refused"] = publish(b"closed/x", qos)
        found[f"QoS {qos} to $SYS"] = publish(b"$SYS/x", qos)
        found[f"QoS {qos} retained"] = publish(b"kept/x", qos, b"x", retain=True)
        found[f"QoS {qos} retained on other topics"] = publish(b"kept/%d", qos, b"x", retain=True)
        found[f"QoS {qos}, a retained message taken back"] = publish(b"kept/%d", qos, retain=True)
        if qos:
            found[f"QoS {qos}, again"] = publish(b"there/1/1", qos, dup=True)
    found["ids that come twice"] = lambda number: encode(
        Publish(b"crowd", b"", 2, packet_id=message_id(number // 2 if number % 4 else number)), version
    )
    found["subscribe to one"] = several(Subscribe, 1, "mine/%d")
    found["subscribe to all"] = several(Subscribe, 1, "#")
    found["subscribe to a level"] = several(Subscribe, 1, "there/+/7")
    found["subscribe to much"] = several(Subscribe, MAX_FILTERS, "mine/%d/+")
    found["subscribe to nothing"] = several(Subscribe, 50, "+/+/nothing/%d")
    found["subscribe to groups"] = several(Subscribe, MAX_FILTERS, "$share/g%d/x")
    found["unsubscribe"] = several(Unsubscribe, MAX_FILTERS, "mine/%d/+")
    found["unsubscribe from all"] = several(Unsubscribe, 1, "#")
    found["list all topics"] = request(b"topics/list", b"#")
    found["list some topics"] = request(b"topics/list", b"there/+/99")
    found["create topics"] = request(b"topics/create", b"made/x", 1)
    found["delete topics"] = request(b"topics/delete", b"there/1/1", 1)
    for action in (b"create", b"fetch", b"ack", b"delete"):
        found[f"{action.decode()} a consumer"] = request(
            b"consumers/c/" + action, b"[" + b"[]," * 9_000 + b"[]]", 1
        )
    found["a request that there is not"] = request(b"nothing", b"x" * 10)
    if version == V5:
        found["AUTH"] = lambda _: encode(Auth(0x18), version)
        found["many properties"] = publish(b"there/1/1", 1, properties=properties(500))
        found["many properties of SUBSCRIBE"] = lambda number: encode(
            Subscribe(message_id(number), [Wish(b"mine", 0)], properties(500)), version
        )
        found["aliases"] = lambda number: encode(
            Publish(b"there/1/1", b"", properties={"topic_alias": number % 64 + 1}), version
        )
    return found


KINDS = {version: sorted(kinds(version)) for version in (V5, V311)}


@contextmanager
def attacker(crowd: Crowd, version: int) -> Iterator[Client]:
    """A connected client, whose session ends with the block."""
    crowd.broker.access = ACCESS[version]
    name = f"attacker-{next(fresh)}"
    wishes = {"receive_maximum": 65_535} if version == V5 else {}
    client = crowd.connect(name, version, **wishes)
    try:
        yield client
    finally:
        client.drop()
        crowd.settle()


def attack(crowd: Crowd, version: int, what: str, data: bytes) -> None:
    """Send one read; fail if a turn is too long at every try."""

    def once(turns: Turns) -> None:
        with attacker(crowd, version) as client:
            read(turns, client, data, what)
            turns.take(f"{what}, end", lambda: client.connection.lost())
            turns.finish(crowd.broker, f"{what}, end")

    check(what, once)


@pytest.mark.parametrize("version", [V5, V311])
def test_runs_of_one_kind_of_packet_do_not_delay_others(crowd: Crowd, version: int) -> None:
    for what, make in kinds(version).items():
        attack(crowd, version, what, filled(make))


@pytest.mark.parametrize("version", [V5, V311])
def test_packets_of_several_kinds_do_not_delay_others(crowd: Crowd, version: int) -> None:
    every = kinds(version)
    chance = random.Random(SEED + version)
    for _ in range(8):
        names = chance.sample(KINDS[version], chance.choice((2, 2, 3, 10)))
        lengths = chance.choice(((1,), (1, 2), (1, 40), (300,)))

        def make(number: int, names: list[str] = names, lengths: tuple[int, ...] = lengths) -> bytes:
            one = every[names[number % len(names)]]
            return b"".join(one(number * 300 + at) for at in range(chance.choice(lengths)))

        attack(crowd, version, " and ".join(names), filled(make))


@pytest.mark.parametrize("known", ["known", "unknown"])
@pytest.mark.parametrize("kind", [fields.PUBACK, fields.PUBREC, fields.PUBREL, fields.PUBCOMP])
def test_acknowledgements_do_not_delay_others(crowd: Crowd, kind: int, known: str) -> None:
    def once(turns: Turns) -> None:
        with attacker(crowd, V5) as client:
            client.subscribe("mine", qos=1 if kind == fields.PUBACK else 2)
            ids = range(1, 4_001)
            if kind == fields.PUBREL:
                data = filled(lambda number: encode(Publish(b"x", b"", 2, packet_id=message_id(number)), V5))
                client.connection.receive(data)
            else:
                crowd.broker.publishing.publish(
                    Batch(b"mine", b"x" * 8_000, 1 if kind == 4 else 2, count=8_000, stride=1)
                )
            crowd.settle()
            client.transport.written.clear()
            if kind == fields.PUBCOMP and known == "known":
                client.ack(fields.PUBREC, *ids)
                crowd.settle()
            elif known == "unknown":
                ids = range(60_000, 64_000)
            data = b"".join(encode(Ack(kind, one), V5) for one in ids)
            read(turns, client, data * (LARGEST_READ // len(data) if known == "unknown" else 1), "acks")

    check(f"{known} ids of type {kind}", once)


def test_a_subscriber_that_leaves_one_message_unacknowledged_does_not_delay_others(crowd: Crowd) -> None:
    window = crowd.broker.limits.max_inflight
    kept = window - 1

    def once(turns: Turns) -> None:
        with attacker(crowd, V5) as client:
            client.subscribe("mine", qos=1)
            session = client.connection.session
            assert session is not None

            def publish(count: int) -> None:
                crowd.broker.publishing.publish(Batch(b"mine", b"x" * count, 1, count=count, stride=1))

            used = 0
            while used < MAX_MESSAGE_ID:  # then the ids begin again
                count = min(window if not used else window - 1, MAX_MESSAGE_ID - used)
                publish(count)
                used += count
                session.acknowledge([one for one in session.inflight_ids if one != kept])
                client.transport.written.clear()
            turns.take("publish", lambda: publish(window - 1))
            turns.finish(crowd.broker, "publish")
            assert session.inflight_messages == window

    check("one message unacknowledged", once)


@pytest.mark.parametrize("form", ["mine/%d", "+/%d/#", "$share/g/%d"])
def test_disconnecting_with_many_subscriptions_does_not_delay_others(crowd: Crowd, form: str) -> None:
    def once(turns: Turns) -> None:
        with attacker(crowd, V5) as client:
            for first in range(0, SUBSCRIPTIONS, MAX_FILTERS):
                wishes = [Wish((form % number).encode(), 1) for number in range(first, first + MAX_FILTERS)]
                data = encode(Subscribe(1, wishes), V5)
                turns.take("subscribe", lambda data=data: client.connection.receive(data))  # type: ignore[misc]
                turns.finish(crowd.broker, "subscribe")
            turns.take("end", client.connection.lost)
            turns.finish(crowd.broker, "end")

    check(form, once)


def test_a_takeover_of_a_large_session_does_not_delay_others(crowd: Crowd) -> None:
    crowd.broker.access = ACCESS[V5]
    name = f"taken-{next(fresh)}"
    first = crowd.connect(name, clean_start=False, session_expiry=100, receive_maximum=65_535)
    for at in range(0, SUBSCRIPTIONS, MAX_FILTERS):
        wishes = [Wish(b"taken/%d" % number, 1) for number in range(at, at + MAX_FILTERS)]
        first.send(Subscribe(1, wishes))
        crowd.settle()
    crowd.broker.publishing.publish(Batch(b"taken/1", b"x" * 3_000, 1, count=3_000, stride=1))
    first.drop()
    for _ in range(500):
        crowd.broker.publishing.publish(Batch(b"taken/2", b"x" * 100, 1, count=100, stride=1))
    for number in range(SUBSCRIPTIONS):
        crowd.broker.publishing.publish(Batch(b"taken/%d" % number, b"x", 1))
    crowd.settle()

    def once(turns: Turns) -> None:
        for _ in range(3):
            client = crowd.wire()
            asked = {"session_expiry": 100, "receive_maximum": 65_535}
            read(turns, client, encode(Connect(name, V5, False, properties=asked), V5), "take over")
            turns.take("end", client.connection.lost)
            turns.finish(crowd.broker, "end")

    check("take over", once)
    with attacker(crowd, V5):
        check("begin anew", lambda turns: read(turns, crowd.wire(), encode(Connect(name), V5), "begin anew"))
    crowd.broker.sessions.end(crowd.broker.sessions.by_id[name])
    crowd.settle()


class Named(Guard):
    """Rules for users that log in with their name alone."""

    def takes_time(self, credentials: Credentials) -> bool:
        return False

    def authenticate(self, credentials: Credentials) -> Accept:
        return Accept(username=credentials.username)


@pytest.mark.parametrize("allowed", ["#", "nothing"])
@pytest.mark.parametrize("form", ["mine/%d", "$share/group/mine/%d"])
def test_a_takeover_by_another_user_does_not_delay_others(crowd: Crowd, form: str, allowed: str) -> None:
    rules = [Rule(["first"], subscribe=["#"]), Rule(["other"], subscribe=["never", allowed])]
    kept = {"#": SUBSCRIPTIONS, "nothing": 0}[allowed]

    def once(turns: Turns) -> None:
        crowd.broker.access = Named({}, rules, True)
        name = f"taken-{next(fresh)}"
        asked = {"session_expiry": 100}
        first = crowd.connect(name, clean_start=False, username="first", password=b"", **asked)
        for at in range(0, SUBSCRIPTIONS, MAX_FILTERS):
            first.send(Subscribe(1, [Wish((form % (at + one)).encode()) for one in range(MAX_FILTERS)]))
            crowd.settle()
        gc.freeze()
        client = crowd.wire()
        packet = Connect(name, V5, False, username="other", password=b"", properties=asked)
        turns.take("take over", lambda: client.connection.receive(encode(packet, V5)))
        turns.finish(crowd.broker, "take over")
        session = client.connection.session
        assert session is not None
        assert len(session.subscriptions) == kept
        client.drop()
        crowd.broker.sessions.end(session)
        crowd.settle()

    check(f"{form}, {allowed}", once)


def test_sessions_that_expire_together_do_not_delay_others(crowd: Crowd) -> None:
    crowd.broker.access = ACCESS[V5]

    def once(turns: Turns) -> None:
        for number in range(2_000):
            will = WillMessage(b"crowd", b"gone", 1)
            client = crowd.connect(
                f"expires-{number}",
                clean_start=False,
                session_expiry=10,
                will=will if number % 5 == 0 else None,
            )
            client.connection.lost()
        crowd.settle()
        turns.take("tick", lambda: crowd.broker.tick(crowd.broker.now + 11))
        turns.finish(crowd.broker, "tick")
        assert "expires-1" not in crowd.broker.sessions.by_id

    check("expiry", once)


@pytest.mark.parametrize("version", [V5, V311])
def test_logins_do_not_delay_others(crowd: Crowd, version: int) -> None:
    crowd.broker.access = ACCESS[V5]
    will = WillMessage(b"crowd", b"x" * 60_000, 1)
    extra = properties(500) if version == V5 else {}
    connect = encode(Connect("stranger", version, will=will, properties=extra), version)
    following = [b"", encode(Disconnect(0), version), filled(lambda _: b"\xc0\x00", 100_000)]
    for more in following:
        check("log in", lambda turns, more=more: read(turns, crowd.wire(), connect + more, "log in"))  # type: ignore[misc]
    crowd.settle()


def loaded(crowd: Crowd, name: str, form: str) -> tuple[Client, list[Client]]:
    """Connect a client with many subscriptions, and messages in flight and queued.

    Also return the second member of its shared subscriptions.
    """
    crowd.broker.access = ACCESS[V311]
    clients = []
    for number in range(2 if form.startswith("$share") else 1):
        client = crowd.connect(
            f"{name}-{number}", clean_start=False, session_expiry=100, receive_maximum=65_535
        )
        session = client.connection.session
        assert session is not None
        for at in range(LOADED_SUBSCRIPTIONS):
            key = (form % at).encode()
            group, topic_filter = split_shared(key)
            crowd.broker.subscribing.subscribe(Subscription(session, topic_filter, 1), group, key)
        clients.append(client)
        if number == 0:
            for at in range(WAITING):
                topic = split_shared((form % (at % LOADED_SUBSCRIPTIONS)).encode())[1]
                crowd.broker.publishing.publish(Batch(topic, b"x", 1))
                if at % 5_000 == 0:
                    crowd.settle()
                    client.transport.written.clear()
    crowd.settle()
    return clients[0], clients[1:]


@pytest.mark.parametrize("form", ["loaded/%d", "$share/group/loaded/%d"])
@pytest.mark.parametrize("end", ["lost", "taken over", "begun anew", "expired", "ended"])
def test_the_end_of_a_large_session_does_not_delay_others(crowd: Crowd, end: str, form: str) -> None:
    def once(turns: Turns) -> None:
        name = f"loaded-{next(fresh)}"
        client, others = loaded(crowd, name, form)
        broker, client_id = crowd.broker, f"{name}-0"
        gc.freeze()
        if end == "lost":
            turns.take(end, client.connection.lost)
        elif end == "expired":
            client.drop()
            crowd.settle()
            turns.take(end, lambda: broker.tick(broker.now + 101))
            turns.finish(broker, end)
            assert client_id not in broker.sessions.by_id
        elif end == "ended":
            turns.take(end, lambda: broker.sessions.end(broker.sessions.by_id[client_id]))
        else:
            broker.access = ACCESS[V5]
            asked = {"session_expiry": 100, "receive_maximum": 65_535}
            connect = encode(Connect(client_id, V5, end == "begun anew", properties=asked), V5)
            read(turns, crowd.wire(), connect, end)
        turns.finish(broker, end)
        for left in (client_id, *(one.connection.credentials.client_id for one in others)):
            if left in broker.sessions.by_id:
                broker.sessions.end(broker.sessions.by_id[left])
        crowd.settle()

    check(f"{form}, {end}", once)
