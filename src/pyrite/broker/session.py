"""A session: what the broker keeps for one client identifier, whether the client is connected or not.

Messages with QoS 1 and 2 are sent by `Sender` (sending.py). A session that is away or slow keeps its place in
the log (`positions`) instead of messages: they are read again when there is room (followers.py). Every step
of a delivery to a session that outlives the process is recorded (record.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyrite.broker.chores import Chores
from pyrite.broker.inflight import InFlight
from pyrite.broker.latest import Latest
from pyrite.broker.link import Link
from pyrite.broker.message import AbsentBatch, Batch
from pyrite.broker.parking import park
from pyrite.broker.reassigning import reassign, return_logged
from pyrite.broker.record import DeliveryRecord
from pyrite.broker.resuming import Resume
from pyrite.broker.sending import Sender
from pyrite.broker.shared_group import SharedGroup
from pyrite.broker.subscriptions import Subscription
from pyrite.broker.targets import target_for
from pyrite.broker.timers import NO_SLOT
from pyrite.broker.withholding import MayRead, forget_answers, withhold_queued
from pyrite.process.fair import Asker

if TYPE_CHECKING:
    from pyrite.broker.accounts import Account
    from pyrite.broker.core import Broker
    from pyrite.broker.followers import CatchUp, Replay
    from pyrite.broker.journal import Stream
    from pyrite.broker.will import Will

MAX_FREED_AT_ONCE = 1_000
"""Messages that a session that ends frees at once; more are freed in turns."""
NEVER = 0xFFFF_FFFF
"""The session expiry interval of a session that does not expire."""

NO_SUBSCRIPTIONS: dict[bytes, Subscription] = {}
"""Shared by all sessions without a subscription; never added to."""


def _emptied(container: deque[Any] | dict[Any, Any]) -> Iterator[None]:
    """Free the contents of a container, one in each step."""
    pop = container.popitem if isinstance(container, dict) else container.pop
    while container:
        pop()
        yield


class Session(Sender):
    """One client's subscriptions, its place in the log, its unfinished deliveries, and its lifetime."""

    __slots__ = (
        "account",
        "chores",
        "client_id",
        "expires_at",
        "expiry",
        "follower",
        "has_answers",
        "identity",
        "incoming",
        "latest",
        "positions",
        "pruned_as",
        "replays",
        "slot",
        "subscriptions",
        "was_group_member",
        "will",
        "will_at",
    )

    def __init__(self, broker: Broker, client_id: str) -> None:
        super().__init__(broker)
        self.client_id = client_id
        self.account: Account | None = None
        """The account whose quotas the session counts for; see `Quotas.own`."""
        self.expiry = 0
        """Seconds that the session outlives its connection, or NEVER."""
        self.expires_at: float | None = None
        self.will_at: float | None = None
        self.slot = NO_SLOT
        self.will: Will | None = None
        self.subscriptions = NO_SUBSCRIPTIONS
        """By filter, with $share/group/ before the filter of a shared subscription."""
        self.incoming: set[int] | None = None
        """Ids of QoS 2 messages from the client that are not released yet [MQTT-4.3.3-10]."""
        self.positions: dict[Stream, int] | None = None
        """Streams that the session reads from the log, and from which offset."""
        self.follower: CatchUp | None = None
        """Reads them while the client is connected."""
        self.replays: dict[Replay, None] | None = None
        """Replays of subscriptions that asked for the past."""
        self.latest: Latest | None = None
        """The newest messages of subscriptions with `latest`, until they are acknowledged."""
        self.identity: object = None
        """User and user groups of the session's last connection."""
        self.pruned_as: object = None
        """The identity, and the version of the rules, for which all subscriptions are known to be allowed."""
        self.has_answers = False
        """Whether answers to requests were ever sent."""
        self.was_group_member = False
        """Whether it was ever a member of a shared subscription."""
        self.chores: Chores | None = None
        """Work that is being done on the queue and on messages in flight."""

    @property
    def lasting(self) -> bool:
        """Whether the session outlives the broker's process."""
        return self.record is not None

    @property
    def has_ended(self) -> bool:
        """Whether the session has ended; its subscriptions may still be in the tree."""
        return self.broker.sessions.by_id.get(self.client_id) is not self

    @property
    def asker(self) -> Asker:
        """The client for whom the log is read, for fairness."""
        return Asker(client=self.client_id) if self.link is None else self.link.credentials.asker

    def due(self) -> None:
        self.broker.sessions.due(self)

    # Deliveries

    def deliver(self, batch: Batch, target: Subscription) -> None:
        """Send a batch that one of the subscriptions matches, queue it, or leave it in the log. HOT."""
        qos = batch.qos if batch.qos < target.qos else target.qos  # [MQTT-3.8.4-8]
        link = self.link
        if qos == 0:
            if link is not None:
                link.send_qos0(batch, target)
            elif target.latest and not self.has_ended:
                self.keep_latest(batch)
            return
        if self.positions is not None and batch.stream in self.positions and not target.keeps_cursor:
            return  # it will be read from the log
        if batch.mixed and link is not None and not link.takes_as_it_came(batch, target, qos):
            for single in batch.parts():
                self.deliver(single, target)
            return
        idle = link is not None and not self.queue.entries and self.resend is None
        sent = self._send(batch, qos, target) if idle else 0
        if sent < batch.count:
            self._enqueue(batch.part(sent, batch.count), qos, target)

    def deliver_retained(self, batch: Batch, target: Subscription) -> None:
        """Deliver a retained message, whatever the session's place in the log."""
        qos = batch.qos if batch.qos < target.qos else target.qos
        if qos:
            sent = self.send_if_idle(batch, qos, target)
            if sent < batch.count:
                self._enqueue(batch.part(sent, batch.count), qos, target)
        elif self.link is not None:
            self.link.send_qos0(batch, target)

    def deliver_missed(self, batch: Batch) -> None:
        """Deliver a batch that the session missed, as far as its subscriptions match."""
        target = target_for(self, batch)
        if target is not None:
            qos = batch.qos if batch.qos < target.qos else target.qos
            if qos:  # a client that was away does not get QoS 0
                self.deliver_from_log(batch, qos, target)

    def deliver_from_log(self, batch: Batch, qos: int, target: Subscription) -> None:
        """Send a batch from the log, or queue it: there was room for it when it was read."""
        sent = self.send_if_idle(batch, qos, target)
        if sent < batch.count:
            self.queue.append(batch.part(sent, batch.count), qos, target)

    def keep_latest(self, batch: Batch) -> None:
        """Keep the newest message of each topic until the client has acknowledged it."""
        if self.latest is None:
            self.latest = Latest(self.broker.limits)
        for part in batch.parts():
            self.broker.figures.messages_dropped += self.latest.put(part)

    def _enqueue(self, batch: Batch, qos: int, target: Subscription) -> None:
        """Queue messages within the bounds of one session, or leave them in the log."""
        if self.has_ended:
            return
        broker, queue = self.broker, self.queue
        limits = broker.limits
        if batch.stream is not None and not target.keeps_cursor:
            if queue.bytes >= limits.max_buffered_bytes or self.link is None:
                self.fall_behind(batch.stream, batch.offset)
                return
            queue.append(batch, qos, target)
            return
        free = limits.max_queued_messages - queue.messages
        if batch.stride:
            free = min(free, (limits.max_queued_bytes - queue.bytes) // batch.stride)
        if free < batch.count:
            broker.figures.messages_dropped += batch.count - max(free, 0)
            if free <= 0:
                return
            batch = batch.part(0, free)
        queue.append(batch, qos, target)

    def fall_behind(self, stream: Stream, offset: int) -> None:
        """Read a stream from the log from `offset` on, instead of taking messages as they are routed."""
        if self.positions is None:
            self.positions = {}
        self.positions[stream] = offset
        if self.link is not None:
            self.broker.following.catch_up(self)

    def has_backlog(self) -> bool:
        """Return whether messages wait in the log for the client, or for a shared group."""
        return bool(self.follower or self.replays or self.broker.groups.behind)

    def read_backlog(self) -> None:
        """Read on in the log what waits there for the client."""
        if self.follower is not None:
            self.follower.read_on()
        for replay in list(self.replays or ()):
            replay.read_on()
        if self.broker.groups.behind:
            for subscription in self.subscriptions.values():
                if subscription.group is not None and subscription.group.reader is not None:
                    subscription.group.reader.read_on()

    def add_replay(self, replay: Replay) -> None:
        if self.replays is None:
            self.replays = {}
        self.replays[replay] = None

    def remove_replay(self, replay: Replay | None) -> None:
        if self.replays is not None and replay is not None:
            self.replays.pop(replay, None)
            self.replays = self.replays or None

    # Chores

    def do(self, chore: Iterator[None], then: Callable[[], object] | None = None) -> None:
        """Do a chore at once, or in turns if it takes long; then call `then`, or send what waits."""
        if self.chores is not None:
            self.chores.add(chore)
            if then is not None:
                self.chores.then = then
            return
        self.chores = Chores(self)
        self.chores.then = then
        self.chores.add(chore)
        self.chores.start()

    def pause(self) -> None:
        """Send nothing until `send_again`."""
        self.resend = deque()

    def withhold(self, may_read: MayRead) -> None:
        """Drop queued messages on topics that the client may not read."""
        self.do(withhold_queued(self, may_read))

    def withhold_answers(self) -> None:
        """Drop the answers to requests of the session's former user."""
        if self.has_answers:
            self.has_answers = False
            self.do(forget_answers(self))

    # Coming and going

    def attach(self, link: Link, window: int) -> None:
        """Connect the session to a link: messages are sent from here on."""
        self.broker.fan_outs.settle(self)
        self.link = link
        self.window = window
        self.expires_at = None
        self.will_at = None
        if self.was_group_member:
            for subscription in self.subscriptions.values():
                if subscription.group is not None:
                    subscription.group.came(subscription)

    def resume(self, may_read: MayRead | None = None) -> None:
        """Send again what is in flight, then what waits; `may_read` says on which topics."""
        resume = Resume(self, may_read)
        if self.chores is None:
            resume.start()
        else:
            self.chores.then = resume.start

    def send_again(self) -> None:
        """Send everything in flight again, then what is queued, missed and replayed."""
        self.pruned_as = self.broker.policy.rights_of(self)
        self.resend = deque(self.inflight.flights) if self.inflight_messages and self.inflight else None
        self.send_waiting()
        if self.positions is not None:
            self.broker.following.catch_up(self)
        self.broker.following.continue_replays(self)

    def detach(self, ends: bool = False) -> None:
        """Forget the link. Other members get unacknowledged messages of shared subscriptions."""
        self.link = None
        self.broker.fan_outs.settle(self)
        if self.chores is None:
            self.resend = None
        else:
            self.chores.detached()
        if self.was_group_member and not ends:  # a session that ends leaves its groups anyway
            for subscription in self.subscriptions.values():
                if subscription.group is not None:
                    subscription.group.went(subscription)
        if self.follower is not None:
            self.follower.stop()
            self.follower = None
        for replay in self.replays or ():
            replay.stop()
        if self.was_group_member and not ends:
            self.do(reassign(self, ends=False))
        park(self)

    def restore(
        self, positions: dict[Stream, int], sent: dict[int, tuple[AbsentBatch, int, bool] | None]
    ) -> None:
        """Restore the deliveries of an earlier process; see `InFlight.restore`."""
        self.positions = positions
        self.inflight = InFlight()
        self.inflight.restore(sent)
        self.record = DeliveryRecord(self)

    def end(self) -> None:
        """Give unacknowledged messages of shared subscriptions to other members, and forget the rest."""
        if self.chores is not None:
            self.chores.then = None
        groups = return_logged(self) if self.was_group_member else {}
        self.record = None
        self.do(self._end(groups))

    def _end(self, groups: Iterable[SharedGroup]) -> Iterator[None]:
        for group in groups:
            yield
            if group.members:
                self.broker.groups.fall_behind(group)
        if self.was_group_member:
            yield from reassign(self, ends=True)
        self._clear()

    def _clear(self) -> None:
        """Forget every unfinished delivery; no other chore is at work."""
        inflight, self.inflight = self.inflight, None
        flights = None if inflight is None else inflight.flights
        latest = None if self.latest is None else self.latest.values
        for container in (self.queue.clear(), flights, latest):
            if container is not None and len(container) > MAX_FREED_AT_ONCE:
                self.broker.turns.free(_emptied(container))
        self.latest = None
        self.incoming = None
        self.positions = None
