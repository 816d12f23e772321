"""The replicated state machine under random faults: all nodes end equal, and no promise is broken.

Clients publish, acknowledge, and move from node to node, with or without leaving the one before; groups are
stored in any order, stored twice, or lost, with or without an answer; nodes apply them when they like, crash,
start again, or are taken for dead. In the end every acknowledged message is in every log, with QoS 2 exactly
once, and so has every subscriber received it. The will of every lost connection was published once.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from pyrite.protocols.mqtt.packets import Connack, Connect, Subscribe, WillMessage, Wish
from tests.cluster.harness import Cluster, Node, cluster_of
from tests.support.core import Client
from tests.support.durable import Deferred, Device, examples

NODES = "abc"
TOPICS = ["a/1", "t/1", "t/2"]
SUBSCRIBERS = ["s0", "s1"]
CLIENTS = [*SUBSCRIBERS, "p"]

nodes = st.sampled_from(NODES)
clients = st.sampled_from(CLIENTS)


class Roamer(Device):
    """A client that may be connected to any node, and is refused at times. Each connection has a will."""

    def __init__(self, machine: Node, client_id: str) -> None:
        super().__init__(machine, client_id)
        self.number = 0
        self.wills: list[bytes] = []
        """Wills of connections that were accepted."""

    def begin(self, clean: bool = False, **properties: Any) -> None:
        client = self.client = Client(self.machine.core, self.version)
        self.todo.clear()
        self.number += 1
        will = WillMessage(b"w", f"will-{self.client_id} {self.number}".encode(), 1)
        properties = {"session_expiry": self.expiry} | properties
        client.send(Connect(self.client_id, self.version, clean, will=will, properties=properties))
        self.receive()

    def _is_known(self, connack: Connack) -> None:
        super()._is_known(connack)
        if not connack.reason:
            self.wills.append(f"will-{self.client_id} {self.number}".encode())

    def _let_in(self, connack: Connack) -> None:
        if connack.reason:
            assert connack.reason in (0x88, 0x89)  # no quorum, or no answer from it in time
            self.cut_off()
        else:
            super()._let_in(connack)


class ClusterMachine(RuleBasedStateMachine):
    """What clients, nodes and the engine do."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.cluster: Cluster
        self.devices: dict[str, Roamer] = {}
        self.number = 0

    @initialize(max_size=st.sampled_from([600, 1 << 20]), slow=st.booleans())
    def begin(self, max_size: int, slow: bool) -> None:
        options = {"writing": Deferred} if slow else {}
        self.cluster = self.stack.enter_context(cluster_of(NODES, max_size=max_size, node_options=options))
        for number, name in enumerate(CLIENTS):
            device = self.devices[name] = Roamer(self.cluster[NODES[number]], name)
            device.connect()
            if name in SUBSCRIBERS:
                assert device.client is not None
                device.client.send(Subscribe(1, [Wish(b"#", 2)], {}))
                device.receive()
                assert device.others, "no SUBACK"
        self.cluster.tick()
        self.cluster.is_automatic = False

    def connected(self, name: str) -> Roamer | None:
        """Return a client if it has a connection that is open."""
        device = self.devices[name]
        device.receive()
        return device if device.connected else None

    # What clients do

    @rule(name=clients, to=nodes, leaves=st.booleans())
    def go(self, name: str, to: str, leaves: bool) -> None:
        device, node = self.devices[name], self.cluster[to]
        device.receive()
        if leaves:
            device.drop()
        else:
            device.last_words()
        device.machine = node
        if node.running:
            device.begin()

    @rule(name=clients, messages=st.lists(st.tuples(st.sampled_from(TOPICS), st.integers(0, 2)), max_size=4))
    def publish(self, name: str, messages: list[tuple[str, int]]) -> None:
        device = self.connected(name)
        if device is not None and messages:
            sent = []
            for topic, qos in messages:
                self.number += 1
                sent.append((topic, f"{name} {self.number}".encode(), qos))
            device.publish(*sent)
            device.receive()

    @rule(name=clients, most=st.sampled_from([1, 100]))
    def answer(self, name: str, most: int) -> None:
        device = self.connected(name)
        if device is not None:
            device.answer(most)
            device.receive()

    # What the engine does

    @rule(name=nodes, at=st.integers(0, 3), stored=st.booleans(), answered=st.booleans())
    def store(self, name: str, at: int, stored: bool, answered: bool) -> None:
        node = self.cluster[name]
        if node.running:
            node.order.take(at, stored, answered)
            node.core.flush()

    @rule(name=nodes)
    def store_all(self, name: str) -> None:
        node = self.cluster[name]
        for _ in range(8 if node.running else 0):
            node.order.take()
            node.core.flush()

    @rule(name=nodes, at=st.integers(0, 3))
    def store_twice(self, name: str, at: int) -> None:
        if self.cluster[name].running:
            self.cluster[name].order.repeat(at)

    @rule(name=nodes, count=st.sampled_from([1, 2, 100]))
    def deliver(self, name: str, count: int) -> None:
        node = self.cluster[name]
        for _ in range(count):
            if not node.running or not node.order.step():
                break
        if node.running:
            node.core.flush()

    @rule(name=nodes)
    def lose_or_find_the_quorum(self, name: str) -> None:
        node = self.cluster[name]
        if node.running:
            node.order.reachable = not node.order.reachable

    # What nodes do

    @rule(name=nodes)
    def write(self, name: str) -> None:
        node = self.cluster[name]
        if node.running and isinstance(node.writing, Deferred):
            node.writing.step()
            node.core.flush()

    @precondition(lambda self: len(self.cluster.running) > 1)
    @rule(name=nodes, stored=st.booleans())
    def crash(self, name: str, stored: bool) -> None:
        node = self.cluster[name]
        if not node.running:
            return
        for device in self.devices.values():
            if device.machine is node and device.client is not None:
                device.last_words()
        while stored and node.order.appends and node.order.reachable:
            self.cluster.engine.groups.append(node.order.appends.pop(0).data)
        node.crash()

    @rule(name=nodes)
    def start(self, name: str) -> None:
        if not self.cluster[name].running:
            self.cluster[name].start()

    @rule(name=nodes)
    def lose_the_lease(self, name: str) -> None:
        self.cluster.engine.leases.pop(name, None)

    @rule()
    def time_passes(self) -> None:
        for node in self.cluster.running:
            node.tick(2)

    # What must hold

    def teardown(self) -> None:
        try:
            if self.devices:
                self.heal()
                self.check()
        finally:
            self.stack.close()

    def heal(self) -> None:
        for node in self.cluster.nodes.values():
            if not node.running:
                node.start()
            node.order.reachable = True
        self.cluster.is_automatic = True
        for _ in range(5):  # nodes without a lease are declared gone, and join again
            self.cluster.tick()
        for number, device in enumerate(self.devices.values()):
            device.receive()
            device.drop()
            device.machine = self.cluster[NODES[number]]
            device.connect()
        for _ in range(3):
            for device in self.devices.values():
                device.finish()
        self.cluster.tick()
        self.cluster.tick()

    def check(self) -> None:
        self.cluster.check()
        stored: Counter[bytes] = Counter()
        exactly: set[bytes] = set()
        for rows in self.cluster["a"].logs().values():
            first: dict[tuple[str, str, int], int] = {}
            for row in rows:
                payload = row["payload"]
                stored[payload] += 1
                if row["qos"] == 2:
                    exactly.add(payload)
                if row["qos"] and stored[payload] == 1 and row["topic"] != "w":
                    publisher, number = payload.decode().split()
                    key = publisher, row["topic"], row["qos"]
                    assert first.get(key, 0) < int(number), f"{payload!r} is out of order"
                    first[key] = int(number)
        for device in self.devices.values():
            for will in device.wills[:-1]:
                assert stored[will] == 1, f"{will!r} was published {stored[will]} times"
            assert not stored[device.wills[-1]]
        for payload in exactly:
            assert stored[payload] == 1, f"{payload!r} is stored {stored[payload]} times"
        for device in self.devices.values():
            assert not device.outgoing, f"{device.client_id}: {list(device.outgoing)} are not acknowledged"
            for sent in device.accepted:
                assert stored[sent.packet.payload], f"{sent.packet.payload!r} was acknowledged, and is lost"
            for sent, reason in device.refused:
                assert sent.times > 1 or not stored[sent.packet.payload], f"{reason} for what is stored"
        for name in SUBSCRIBERS:
            self.check_received(self.devices[name], stored, exactly)

    def check_received(self, device: Roamer, stored: Counter[bytes], exactly: set[bytes]) -> None:
        count = Counter(packet.payload for packet in device.got)
        first: dict[tuple[bytes, bytes, int], int] = {}
        for packet in device.got:
            publisher, number = packet.payload.split()
            key = publisher, packet.topic, packet.qos
            if (
                packet.qos
                and packet.topic != b"w"
                and not packet.dup
                and stored[packet.payload] == 1 == count[packet.payload]
            ):
                assert first.get(key, 0) < int(number), f"{packet} is out of order"
                first[key] = int(number)
        for payload in exactly:
            assert count[payload] == 1, f"{device.client_id} has received {payload!r} {count[payload]} times"
        for payload in self.acknowledged():
            assert count[payload], f"{device.client_id} has not received {payload!r}"

    def acknowledged(self) -> list[bytes]:
        return [sent.packet.payload for device in self.devices.values() for sent in device.accepted]


ClusterMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=60, deadline=None)
TestCluster = ClusterMachine.TestCase
