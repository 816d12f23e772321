"""Sessions on the log against a simple model: after any steps, each gets its promised messages.

Clients subscribe, publish, acknowledge when they like, leave and come back; the disk writes and reads when it
likes; the broker's process ends and another takes its place; time passes. The model knows what each session
must get: QoS 1 at least once, QoS 2 exactly once, in order for each topic; nothing that it did not ask for,
and nothing that had expired. Of a shared subscription, one member must get it.

Little may wait in memory, so that sessions read from the log most of the time.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyrite.broker import fanout, routes
from pyrite.broker.limits import Limits
from pyrite.journal import gathering, group_commit, progress, reading
from pyrite.protocols.mqtt.packets import Publish, Suback, Subscribe, Unsubscribe, Wish
from pyrite.storage import segment_writer
from pyrite.storage.options import StreamOptions
from pyrite.topics.filters import matches
from tests.support.durable import Deferred, Device, Machine, examples, quick_folder

TOPICS = ["a/0", "a/1", "t/0", "t/1", "u/0"]
FILTERS = ["a/0", "a/+", "t/0", "t/#", "+/0", "u/#", "+/+"]
SHARED_TOPICS = {"g": ["a/s/0", "a/s/1"], "h": ["s/s/0", "s/s/1"]}
SHARED_FILTERS = {"g": "$share/g/a/s/#", "h": "$share/h/s/#"}
KEPT = ["r/r/0", "r/r/1"]
UNCAPTURED = "u/"
LASTING = {"p": 10_000, "c0": 500, "c1": 500, "c2": 0}
"""For how long the session of each client outlives its connection."""
CLIENTS = list(LASTING)
TICKS = [3, 21, 333]
EXPIRIES = [10, 50]  # which no sum of ticks is equal to

SMALL: list[list[tuple[Any, str, int]]] = [
    [  # every message is delivered in slices, to one receiver at a time
        (fanout, "MAX_DIRECT_COST", 0),
        (fanout, "COST_PER_CLOCK", 1),
        (routes, "MAX_PROMPT_RECEIVERS", 0),
    ],
    [(fanout, "MIN_FILTERED_TARGETS", 0)],  # subscribers of a topic above which only connected ones are asked
    [
        (fanout, "MAX_OWED", 50),
        (fanout, "MIN_CHARGED_COST", 0),
        (routes, "MAX_CHEAP_RECEIVERS", 0),
    ],  # publishers wait
    [(reading, "MAX_PIECE_MESSAGES", 3)],  # read from the log at a time
    [(reading, "MIN_EXAMINED", 2)],
    [(progress, "MAX_STEP_ROWS", 2)],  # of a session's steps before they are written anew
    [(group_commit, "MAX_PENDING_BYTES", 200)],  # bytes that wait to be written before no more is read
    [(group_commit, "MAX_CHANGES", 4)],  # changes that wait before no more is read from a client
    [(group_commit, "MAX_DELAYED_CHANGES", 1)],  # changes that are written at once
    [(gathering, "MAX_ROWS", 0)],  # messages of a group that go to the tail
    [(segment_writer, "MAX_TAIL_ROWS", 3)],  # messages in the tail before it is folded
]
FEW_CHANGES_WAIT, FEW_CHANGES_ARE_WRITTEN = 7, 8
"""Places above. If few changes may wait, few must be written at once, or publishers wait for a tick."""

clients = st.sampled_from(CLIENTS)
windows = st.sampled_from([1, 2, 5])
rounds = st.sampled_from([None, 0, 1, 3])


class Message:
    """A message, and what its publisher knows of it."""

    def __init__(self, number: int, topic: str, qos: int, publisher: str, expiry: int | None) -> None:
        self.number = number
        self.topic = topic
        self.qos = qos
        self.publisher = publisher
        self.expiry = expiry
        self.sent_at = 0.0
        """When it was sent last."""
        self.versions: dict[str, int] = {}
        """Of each session's subscriptions, when it was sent first."""
        self.unsafe = False
        """Whether a crash came that it need not survive, as no stream captures it."""

    def expired(self, now: float) -> bool:
        return self.expiry is not None and now > self.sent_at + self.expiry


class SessionModel:
    """What a session must get, and may get."""

    def __init__(self) -> None:
        self.alive = False
        self.version = 0
        """Changes with every change of what it is subscribed to."""
        self.subscriptions: dict[str, tuple[int, bool, int]] = {}
        """By filter: quality of service, no-local, and after which message it was made."""
        self.must: dict[int, int] = {}
        """Numbers of messages, and with which quality of service they must come; 1 is at least once."""
        self.may: set[int] = set()
        self.count: Counter[int] = Counter()
        """How often each came, within this session."""
        self.order: dict[tuple[str, str, int, int], int] = {}
        """The newest number by publisher, topic, and quality of service as it was sent and as it came."""
        self.away_since: float | None = None

    def end(self) -> None:
        self.alive = False
        self.version += 1
        self.subscriptions.clear()
        self.must.clear()
        self.may.clear()
        self.count.clear()
        self.order.clear()
        self.away_since = None

    def wants(self, message: Message, client_id: str, also_older: bool = True) -> int | None:
        """Return with which quality of service the session is to get a message; None if it is not."""
        granted = [
            qos
            for topic_filter, (qos, no_local, since) in self.subscriptions.items()
            if matches(topic_filter.encode(), message.topic.encode())
            and not (no_local and message.publisher == client_id)
            and (also_older or since < message.number)
        ]
        return min(message.qos, max(granted)) if granted else None


class GroupModel:
    """A shared subscription."""

    def __init__(self) -> None:
        self.members: set[str] = set()
        self.life = 0
        """Changes when there is no member left."""
        self.left = 0
        """Changes when a member leaves, for which a QoS 2 message may be lost."""
        self.must: dict[int, tuple[int, int]] = {}
        """Numbers of messages, and life and leaving as they were."""
        self.count: Counter[int] = Counter()
        self.exactly: Counter[int] = Counter()
        """How often a message came with QoS 2, to a session that lasts."""

    def leave(self, client_id: str) -> None:
        if client_id in self.members:
            self.members.discard(client_id)
            self.left += 1
            if not self.members:
                self.life += 1


class LogMachine(RuleBasedStateMachine):
    """The rules of the game."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        folder = self.stack.enter_context(quick_folder())
        sizes: dict[str, Any] = {"segment_bytes": 4_000, "fsync_interval": 0.0}
        self.machine = Machine(
            folder,
            [StreamOptions("a", ["a/#"], **sizes), StreamOptions("rest", ["t/#", "s/#", "r/#"], **sizes)],
            Limits(max_buffered_bytes=60, max_waiting_bytes=400, max_queued_bytes=100_000),
            writing=Deferred,
            committing=Deferred,
            reading=Deferred,
            clock=count(0, 0.001).__next__,  # so that others have their turn between any two steps
        )
        self.number = 0
        self.messages: dict[int, Message] = {}
        self.pending: dict[int, Message] = {}
        """Messages with QoS 1 and 2 that are not acknowledged."""
        self.sessions = {name: SessionModel() for name in CLIENTS}
        self.groups = {name: GroupModel() for name in SHARED_FILTERS}
        self.retained: dict[str, bytes] = {}
        self.devices = {name: Device(self.machine, name, expiry) for name, expiry in LASTING.items()}
        self.looked_at = dict.fromkeys(CLIENTS, 0)
        self.known_accepted = dict.fromkeys(CLIENTS, 0)

    @initialize(
        windows=st.lists(st.sampled_from([1, 2, 5]), min_size=4, max_size=4),
        small=st.lists(st.booleans(), min_size=len(SMALL), max_size=len(SMALL)),
    )
    def begin(self, windows: list[int], small: list[bool]) -> None:
        # What happens in a large broker only is to happen here, too.
        small[FEW_CHANGES_ARE_WRITTEN] |= small[FEW_CHANGES_WAIT]
        for constants, chosen in zip(SMALL, small, strict=True):
            for module, name, value in constants if chosen else ():
                self.stack.enter_context(patch.object(module, name, value))
        for name, window in zip(CLIENTS, windows, strict=True):
            self.devices[name].window = window
            self.connect(name, False)

    # The disk

    def write_all(self) -> None:
        assert isinstance(self.machine.writing, Deferred)
        self.machine.core.flush()
        while self.machine.writing.step() or self.write_state():
            self.machine.core.flush()

    def write_state(self, tell: bool = True) -> bool:
        """Have the state written, if the messages before it are; return whether it was."""
        commit = self.machine.journal.groups.state_commit
        assert isinstance(self.machine.committing, Deferred)
        if commit is None or not commit.may_begin.is_set() or not self.machine.committing.waiting:
            return False
        if tell:
            return self.machine.committing.step()
        self.machine.committing.work_only()
        return True

    @rule(rounds=rounds)
    def disk_writes(self, rounds: int | None) -> None:
        assert isinstance(self.machine.writing, Deferred)
        with self.few(rounds):
            self.machine.writing.step()
            self.machine.core.flush()
        self.look()

    @contextmanager
    def few(self, rounds: int | None) -> Iterator[None]:
        """Have the broker take few rounds of turns: some work is still to be done at the next rule."""
        self.machine.core.rounds = rounds
        yield
        self.machine.core.rounds = None

    @rule()
    def disk_writes_the_state(self) -> None:
        self.write_state()
        self.machine.core.flush()
        self.look()

    @rule(count=st.integers(1, 3))
    def disk_reads(self, count: int) -> None:
        assert isinstance(self.machine.reading, Deferred)
        for _ in range(count):
            self.machine.reading.step()
            self.machine.core.flush()
        self.look()

    # What has happened

    def look(self) -> None:
        """Take what came to everyone, and see that it is right."""
        for name, device in self.devices.items():
            connected = device.client is not None
            device.receive()
            assert device.client is not None or not connected, f"{name} was closed: {device.others[-1:]}"
            assert device.refused == []
            for sent in device.accepted[self.known_accepted[name] :]:
                self.accepted(int(sent.packet.payload))
            self.known_accepted[name] = len(device.accepted)
            for packet in device.got[self.looked_at[name] :]:
                self.got(name, packet)
            self.looked_at[name] = len(device.got)

    def accepted(self, number: int) -> None:
        """Note what a message that was acknowledged promises."""
        message = self.pending.pop(number, None)
        if message is None:
            return
        for name, session in self.sessions.items():
            quality = session.wants(message, name)
            if quality is not None:
                session.may.add(number)
            if quality and session.version == message.versions[name] and not message.unsafe:
                session.must[number] = quality
        for name, group in self.groups.items():
            if message.topic in SHARED_TOPICS[name] and group.life == message.versions[name]:
                group.must[number] = (group.life, message.versions[f"{name} left"])

    def got(self, name: str, packet: Publish) -> None:
        session, number = self.sessions[name], int(packet.payload)
        message = self.messages[number]
        assert packet.topic.decode() == message.topic
        assert packet.dup or not message.expired(self.machine.elapsed), f"{number} had expired"
        for group_name, group in self.groups.items():
            if message.topic in SHARED_TOPICS[group_name]:
                group.count[number] += 1
                if packet.qos == 2 and LASTING[name]:
                    group.exactly[number] += 1
                    assert group.exactly[number] == 1, f"{number} was dealt twice"
                return
        assert number in session.may, f"{name} did not ask for {number}"
        fresh = not session.count[number]
        session.count[number] += 1
        assert packet.qos <= message.qos
        if message.qos != 1 and packet.qos != 1 and not message.unsafe:
            assert fresh, f"{name} got {number} more than once"
        if fresh:
            key = (message.publisher, message.topic, message.qos, packet.qos)
            assert number > session.order.get(key, 0), f"{name} got {number} after {session.order[key]}"
            session.order[key] = number

    # What may happen

    @rule(
        client_id=clients,
        chosen=st.lists(
            st.tuples(
                st.sampled_from([*TOPICS, *SHARED_TOPICS["g"], *SHARED_TOPICS["h"]]),
                st.integers(0, 2),
                st.sampled_from([0, 0, 80]),
            ),
            min_size=1,
            max_size=6,
        ),
        expiry=st.sampled_from([None, None, None, *EXPIRIES]),
        written=st.booleans(),
        rounds=rounds,
    )
    def publish(
        self,
        client_id: str,
        chosen: list[tuple[str, int, int]],
        expiry: int | None,
        written: bool,
        rounds: int | None,
    ) -> None:
        device = self.devices[client_id]
        if device.client is None:
            return
        sending = []
        for topic, qos, padding in chosen:
            self.number += 1
            message = Message(self.number, topic, qos, client_id, expiry)
            self.messages[self.number] = message
            message.sent_at = self.machine.elapsed
            self.note_sent(message)
            sending.append((topic, b"%d" % self.number + b" " * padding, qos))
        properties: dict[str, Any] = {} if expiry is None else {"message_expiry": expiry}
        with self.few(rounds):
            device.publish(*sending, **properties)
            if written:
                self.write_all()
        self.look()

    def note_sent(self, message: Message) -> None:
        message.versions = {name: session.version for name, session in self.sessions.items()}
        message.versions |= {name: group.life if group.members else -1 for name, group in self.groups.items()}
        message.versions |= {f"{name} left": group.left for name, group in self.groups.items()}
        for name, session in self.sessions.items():
            if session.wants(message, name) is not None:
                session.may.add(message.number)
        if message.qos:
            self.pending[message.number] = message

    @rule(
        chosen=st.lists(st.tuples(st.sampled_from(KEPT), st.sampled_from([b"", b"1", b"2"])), max_size=4),
        qos=st.integers(0, 2),
    )
    def retain(self, chosen: list[tuple[str, bytes]], qos: int) -> None:
        if self.devices["p"].client is None:
            return
        for topic, payload in chosen:
            self.devices["p"].publish(
                (topic, b"", qos) if not payload else (topic, payload, qos), retain=True
            )
            self.retained.pop(topic, None)
            if payload:
                self.retained[topic] = payload
        self.write_all()
        self.devices["p"].receive()
        accepted = self.devices["p"].accepted
        numbers = [one for one in accepted[self.known_accepted["p"] :] if not one.packet.retain]
        accepted[self.known_accepted["p"] :] = numbers
        self.look()

    @rule(
        client_id=clients,
        topic_filter=st.sampled_from(FILTERS),
        qos=st.integers(0, 2),
        no_local=st.booleans(),
    )
    def subscribe(self, client_id: str, topic_filter: str, qos: int, no_local: bool) -> None:
        device, session = self.devices[client_id], self.sessions[client_id]
        if device.client is None:
            return
        since = session.subscriptions.get(topic_filter, (0, False, self.number))[2]
        session.subscriptions[topic_filter] = (qos, no_local, since)
        self.changed(client_id)
        self.request(device, Subscribe(device.request(), [Wish(topic_filter.encode(), qos, no_local)]), [qos])

    @rule(client_id=clients, topic_filter=st.sampled_from(FILTERS))
    def unsubscribe(self, client_id: str, topic_filter: str) -> None:
        device, session = self.devices[client_id], self.sessions[client_id]
        if device.client is None:
            return
        existed = session.subscriptions.pop(topic_filter, None) is not None
        self.changed(client_id)
        self.request(device, Unsubscribe(device.request(), [topic_filter.encode()]), [0 if existed else 0x11])

    def changed(self, client_id: str) -> None:
        """Update the promised messages after a session's subscriptions have changed."""
        session = self.sessions[client_id]
        session.version += 1
        for number in list(session.must):
            if not session.count[number]:
                if session.wants(self.messages[number], client_id, also_older=False):
                    session.must[number] = 1
                else:
                    del session.must[number]
        for message in self.pending.values():
            if session.wants(message, client_id) is not None:
                session.may.add(message.number)

    def request(self, device: Device, packet: Subscribe | Unsubscribe, expected: list[int]) -> None:
        assert device.client is not None
        device.client.send(packet)
        self.write_all()
        self.look()
        answer = device.others.pop()
        assert isinstance(answer, Suback)
        assert (answer.packet_id, answer.reasons) == (packet.packet_id, expected)

    @rule(client_id=clients, group=st.sampled_from(list(SHARED_FILTERS)), qos=st.integers(1, 2))
    def share(self, client_id: str, group: str, qos: int) -> None:
        device = self.devices[client_id]
        if device.client is not None:
            self.groups[group].members.add(client_id)
            wish = Wish(SHARED_FILTERS[group].encode(), qos)
            self.request(device, Subscribe(device.request(), [wish]), [qos])

    @rule(client_id=clients, group=st.sampled_from(list(SHARED_FILTERS)))
    def unshare(self, client_id: str, group: str) -> None:
        device = self.devices[client_id]
        if device.client is not None:
            existed = client_id in self.groups[group].members
            self.groups[group].leave(client_id)
            packet = Unsubscribe(device.request(), [SHARED_FILTERS[group].encode()])
            self.request(device, packet, [0 if existed else 0x11])

    @rule(client_id=clients, most=st.integers(1, 6))
    def acknowledge(self, client_id: str, most: int) -> None:
        self.devices[client_id].answer(most)
        self.look()

    @rule(client_id=clients, cleanly=st.booleans())
    def leave(self, client_id: str, cleanly: bool) -> None:
        device = self.devices[client_id]
        if device.client is None:
            return
        device.drop(cleanly)
        self.is_away(client_id)
        self.look()

    def is_away(self, client_id: str) -> None:
        session = self.sessions[client_id]
        session.away_since = self.machine.elapsed
        if not LASTING[client_id]:
            self.ended(client_id)

    def ended(self, client_id: str) -> None:
        self.sessions[client_id].end()
        for group in self.groups.values():
            group.leave(client_id)
        for number in [n for n, message in self.pending.items() if message.publisher == client_id]:
            del self.pending[number]

    @rule(client_id=clients, clean=st.sampled_from([False] * 7 + [True]), window=windows)
    def come_back_or_take_over(self, client_id: str, clean: bool, window: int) -> None:
        self.devices[client_id].window = window
        self.connect(client_id, clean)

    def connect(self, client_id: str, clean: bool) -> None:
        device, session = self.devices[client_id], self.sessions[client_id]
        if device.client is not None and not LASTING[client_id]:
            self.ended(client_id)  # it ends with the connection that is taken over
        expected = session.alive and not clean
        if not expected and session.alive:
            self.ended(client_id)
        device.begin(clean)
        self.write_all()
        device.receive()
        assert device.connected
        assert device.present == expected, f"{client_id}: session present is {device.present}"
        session.alive = True
        session.away_since = None
        for message in self.pending.values():
            if message.publisher == client_id:  # it was sent again
                message.sent_at = self.machine.elapsed
        self.write_all()
        self.look()

    @rule(seconds=st.sampled_from(TICKS))
    def time_passes(self, seconds: int) -> None:
        self.pass_time(seconds)

    def pass_time(self, seconds: int) -> None:
        self.write_all()
        self.look()
        self.machine.tick(seconds)
        self.write_all()
        for name, session in self.sessions.items():
            away = session.away_since
            if session.alive and away is not None and self.machine.elapsed > away + LASTING[name]:
                self.ended(name)
        self.look()

    @rule(written=st.integers(0, 2), state=st.booleans())
    def crash(self, written: int, state: bool) -> None:
        """End the process; the disk may have written more than anyone was told."""
        assert isinstance(self.machine.writing, Deferred)
        for _ in range(written):
            self.machine.writing.work_only()
        if state:
            self.write_state(tell=False)
        self.machine.crash(keep=True)
        for name, device in self.devices.items():
            device.last_words()
            if self.sessions[name].away_since is None:
                self.is_away(name)
        for message in self.messages.values():
            if message.topic.startswith(UNCAPTURED):
                message.unsafe = True
                for session in self.sessions.values():
                    session.must.pop(message.number, None)
        self.machine.start()
        assert self.machine.journal.damages == []
        self.pass_time(3)

    @precondition(lambda self: any(device.client is not None for device in self.devices.values()))
    @rule(client_id=clients)
    def read_slowly(self, client_id: str) -> None:
        client = self.devices[client_id].client
        if client is not None:
            client.transport.slow = True

    @rule(client_id=clients)
    def read_all(self, client_id: str) -> None:
        client = self.devices[client_id].client
        if client is not None:
            client.take_all()
            self.look()

    # What must hold

    @invariant()
    def retained_messages_are_those_of_the_model(self) -> None:
        kept = {
            topic.decode(): batch.payload()
            for topic, batch in self.machine.core.broker.retained.values.items()
        }
        assert kept == self.retained

    @invariant()
    def the_broker_has_the_sessions_of_the_model(self) -> None:
        alive = {name for name, session in self.sessions.items() if session.alive}
        assert set(self.machine.core.broker.sessions.by_id) == alive

    def finish(self) -> None:
        """Have everyone come back, take everything and acknowledge it."""
        for name, device in self.devices.items():
            device.window = 5
            if device.client is None:
                if LASTING[name]:
                    self.connect(name, False)
            else:
                device.client.take_all()
        idle = 0
        while idle < 2:
            self.machine.settle()
            self.look()
            answered = sum([device.answer() for device in self.devices.values()])
            idle = 0 if answered else idle + 1

    def teardown(self) -> None:
        """In the end every session has its promised messages."""
        try:
            if sys.exc_info()[0] is None:
                self.check()
        finally:
            self.machine.abandon()
            self.stack.close()

    def check(self) -> None:
        self.finish()
        now = self.machine.elapsed
        for name, session in self.sessions.items():
            for number, quality in session.must.items():
                message = self.messages[number]
                if not message.expired(now):
                    assert session.count[number], f"{name} never got {number}"
                if quality == 2 and session.count[number] and not message.unsafe:
                    assert session.count[number] == 1, f"{name} got {number} {session.count[number]} times"
        for group in self.groups.values():
            for number, (life, left) in group.must.items():
                message = self.messages[number]
                if life != group.life or message.expired(now) or (message.qos == 2 and left != group.left):
                    continue
                assert group.count[number], f"no member got {number}"
        for device in self.devices.values():
            assert device.client is None or device.outgoing == {}
        broker = self.machine.core.broker
        assert broker.figures.messages_stored == 0
        for one in broker.sessions.by_id.values():
            assert one.inflight_messages == 0
            assert one.inflight is None or one.inflight.size == 0


LogMachine.TestCase.settings = settings(
    max_examples=examples(100), stateful_step_count=40, deadline=None, report_multiple_bugs=False
)
TestLog = LogMachine.TestCase
