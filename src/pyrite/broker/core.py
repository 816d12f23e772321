"""The broker: sessions, subscriptions and retained messages, and the way of a batch from one to the others.

It has no sockets, no files and no clock: connections call it, `tick` tells it the time, and `flush` is
called by whoever drives it, after `wake` said that there is something to send. What is to last goes through a
`Journal`; with QoS 1 and 2, a message that a stream captures is routed when the journal says that it is safe.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from sortedcontainers import SortedList

from pyrite.broker.access import Access, Credentials
from pyrite.broker.admission import Admission, Aside
from pyrite.broker.catalog import Catalog, TopicOptions
from pyrite.broker.fanout import MAX_DIRTY, FanOuts, lowest_offsets
from pyrite.broker.figures import Figures
from pyrite.broker.followers import CatchUp, GroupReader, Replay
from pyrite.broker.journal import Done, Fault, Journal, MemoryJournal, Stream
from pyrite.broker.limits import Limits
from pyrite.broker.link import Link
from pyrite.broker.message import Batch, MixedBatch
from pyrite.broker.quotas import QuotaOptions, Quotas
from pyrite.broker.reassigning import return_restored
from pyrite.broker.record import DeliveryRecord, snapshot
from pyrite.broker.retained import SYSTEM as SYSTEM
from pyrite.broker.retained import Retained, retained_size
from pyrite.broker.session import NEVER, NO_SUBSCRIPTIONS, Session
from pyrite.broker.subscriptions import Route, SharedGroup, Subscription, SubscriptionTree
from pyrite.broker.targets import asks_for
from pyrite.broker.timers import TURN as TURN
from pyrite.broker.timers import Timers
from pyrite.broker.will import Will
from pyrite.broker.withholding import MayRead
from pyrite.storage.positions import Earliest, Latest, Offset, Position
from pyrite.topics.filters import matches
from pyrite.topics.tree import walk

if TYPE_CHECKING:
    from pyrite.broker.accounts import Account
    from pyrite.broker.consumers import Consumer

logger = logging.getLogger(__name__)


def _at_once(job: Callable[[], Any], then: Callable[[Any], object]) -> None:
    """Stand in for another thread."""
    then(job())


def _no_clock() -> float:
    """Stand in for a clock: for whoever drives the broker by hand, everything takes no time."""
    return 0.0


REMOVED_TOGETHER = 4
"""Subscriptions that are taken out of the tree between two looks at the clock."""
FREED_TOGETHER = 256
"""Objects that are freed between two looks at the clock."""
FEW_MESSAGES = 100
"""Messages between two ticks below which there is time to find routes anew."""
RUN = 16
"""Messages of a batch up to which it is always delivered at once, if it has few receivers."""
FLUSHED_TOGETHER = 16
"""Connections whose output is sent between two looks at the clock."""


def _no_wake() -> None:
    """Stand in for an event loop: whoever drives the broker by hand flushes by hand."""


class Turn(Protocol):
    """Work that is done in turns, so that all clients have theirs."""

    def go_on(self) -> object:
        """Do some of the work, for at most TURN seconds.

        Return true if a client that sends much is read from again: its next read may take a turn at once.
        """


class _Call:
    """A single call, as a turn."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def go_on(self) -> None:
        """Make it."""
        self._call()


class Broker:
    """One broker's whole state, and every decision on it."""

    def __init__(
        self,
        limits: Limits | None = None,
        access: Access | None = None,
        wake: Callable[[], object] = _no_wake,
        clock: Callable[[], float] = _no_clock,
        journal: Journal | None = None,
        topics: TopicOptions | None = None,
        aside: Aside | None = None,
        quotas: QuotaOptions | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.access = access or Access()
        self.figures = Figures()
        self.now = 0.0
        """The time, in seconds from some point in the past; as `tick` told it."""
        self.timers = Timers()
        self.sessions: dict[str, Session] = {}
        self.client_ids: SortedList[str] = SortedList()
        """Those of all sessions, in order: for lists of them, some at a time."""
        self.journal = journal or MemoryJournal()
        self.subscriptions = SubscriptionTree(self.journal.stream_for)
        self.consumers: dict[str, Consumer] = {}
        self.catalog = Catalog(self.journal, topics)
        self.presence = 0
        """Changes whenever a client comes or goes."""
        self.groups_behind: set[SharedGroup] = set()
        """Shared subscriptions that wait for a member with room."""
        self.quotas = Quotas(self, quotas or QuotaOptions())
        self.retained = Retained(self.quotas.kept)
        self._to_retain: dict[bytes, int] = {}
        """How many messages of a topic are to be retained as soon as they are safe."""
        self._wake = wake
        self.admission = Admission(self, aside or _at_once)
        self.clock = clock
        """A fine clock, only to see how long something takes."""
        self.alert: Callable[[], object] = _no_wake
        """Called when something happened that whoever watches the broker should know at once."""
        self._more_is_due = False
        self.is_quiet = False
        """Whether few messages come, and nothing is left of a time when there were many."""
        self._received = 0
        """Messages that had come at the last tick."""
        self._leaving: list[Subscription] = []
        """Subscriptions of sessions that have ended which are still in the tree."""
        self._unneeded: list[Iterator[None]] = []
        """What frees memory, step by step."""
        self._interrupted: deque[Turn] = deque()
        self.fan_outs = FanOuts(self)
        self._fan_outs = self.fan_outs.queue
        self._choked: list[Turn] = []
        self._dirty: list[Link] = []

    # Time and output

    def tick(self, now: float) -> None:
        """Tell the time, and do what is due."""
        self.now = now
        self._do_what_is_due()
        received, self._received = self._received, self.figures.publish_received
        few = self._received - received < FEW_MESSAGES
        forgotten = few and self.subscriptions.forget_oldest()  # scattered, they keep much memory in use
        self.is_quiet = few and not forgotten

    def _do_what_is_due(self) -> None:
        """Do it for a turn: sessions of many may end at one time."""
        until = self.clock() + TURN
        if self.timers.advance(self.now, lambda: self.clock() > until) and not self._more_is_due:
            self._more_is_due = True
            self.soon(self._do_more_that_is_due)

    def _do_more_that_is_due(self) -> None:
        self._more_is_due = False
        self._do_what_is_due()

    def wake(self) -> None:
        """Have `flush` called soon, unless whoever is at work calls it anyway."""
        self._wake()

    def dirty(self, link: Link) -> None:
        """Note that `link` has something to send."""
        if not self._dirty:
            self._wake()
        self._dirty.append(link)

    def flush(self) -> None:
        """Send what links have gathered: one write each. If they are many, some wait for the next call."""
        self.journal.kick()
        links = self._dirty
        self._dirty = []
        if len(links) <= FLUSHED_TOGETHER:
            for link in links:
                link.flush()
        else:
            self._flush_many(links)
        self.journal.tidy()

    def _flush_many(self, links: list[Link]) -> None:
        until = self.clock() + TURN
        for number, link in enumerate(links):
            if number % FLUSHED_TOGETHER == 0 and self.clock() > until:
                self._dirty = links[number:] + self._dirty
                return
            link.flush()

    def interrupted(self, turn: Turn) -> None:
        """Note that someone has had a turn and has more to do."""
        if not self._interrupted:
            self._wake()
        self._interrupted.append(turn)

    def soon(self, call: Callable[[], object]) -> None:
        """Have something called when those at work are done: it would get into their way now."""
        self.interrupted(_Call(call))

    @property
    def has_interrupted(self) -> bool:
        """Whether anyone waits for a turn, or there is more to deliver or to send."""
        return bool(self._interrupted or self._fan_outs or self._dirty)

    def take_turns(self) -> None:
        """Give turns to those that wait longest, for one turn's time together; the others wait on.

        One client that is read from again ends the round: so in a round of the event loop all clients that
        send much take no longer together than one alone. Half of the time is for fan-outs, or all of it; but
        nothing more is delivered before most of what was delivered is sent.
        """
        turns = self._interrupted
        until = self.clock() + TURN
        if self._fan_outs and len(self._dirty) <= MAX_DIRTY:
            self.fan_outs.work(until - TURN / 2 if turns else until)
        for _ in range(len(turns)):
            if turns.popleft().go_on() or self.clock() > until:
                break

    # Who may come in

    def access_changed(self) -> None:
        """Take note that others may come in, or do other things, than before."""
        self.admission.changed()
        self.quotas.access_changed()
        for session in self.sessions.values():
            if session.will is not None and not self.is_welcome(session.will.author):
                session.will = None

    def is_welcome(self, credentials: Credentials) -> bool:
        """Tell whether a client that was let in may stay; not if the access plug-in fails to say so."""
        try:
            return self.access.is_welcome(credentials)
        except Exception:
            logger.exception("internal error in the access plug-in")
            return False

    # Messages

    def publish(
        self,
        batch: Batch,
        route: Route | None = None,
        done: Done | None = None,
        packet_ids: Sequence[int] | None = None,
    ) -> None:
        """Take a batch: into the log, if a stream captures its topic, and to everyone who asked for it. HOT.

        `done` is told when it is safe and on its way, or why it is not; without it, QoS 0 waits for nothing.
        `packet_ids` are those of QoS 2 messages of a session that lasts.
        """
        if route is None:
            routes = self.subscriptions
            route = routes.routes.get(batch.topic) or routes.route(batch.topic)
        stream = route.stream
        if batch.retain and (batch.qos or done is not None):
            done = self._retaining(batch.topic, done)
        if (batch.qos or done is not None) and self.journal.lasting:
            if route.is_costly or batch.count > RUN:
                done = self.fan_outs.charged(batch, route, done)
            if stream is not None:
                self.journal.append(stream, batch, done, packet_ids)
            else:  # acknowledgements go out in the order of the messages
                self.journal.in_turn(lambda: self._pass_on(batch, done))
            return
        if stream is not None:
            self.journal.append(stream, batch, None, packet_ids)
        matched = self.send(batch, route, begins=True)
        if batch.retain:
            self._retain_in_turn(batch)
        if done is not None:
            done(matched, None)

    def publish_for(
        self,
        account: Account,
        batch: Batch,
        route: Route | None = None,
        done: Done | None = None,
        packet_ids: Sequence[int] | None = None,
    ) -> None:
        """Publish a batch of an account that is metered, if its quota of stored bytes has room for it.

        Without room, QoS 0 is dropped and counted; else `done` is told a fault, and nothing was published.
        """
        if route is None:
            route = self.subscriptions.route(batch.topic)
        stream, size = route.stream, batch.content_size
        if stream is None:
            self.publish(batch, route, done, packet_ids)
            return
        if not account.may_store(size):
            self.figures.quota_refused += batch.count
            if done is None:
                self.figures.messages_dropped += batch.count
            else:
                fault = Fault(True, account.refusal("stored_bytes", size), quota=True)
                self.journal.in_turn(partial(done, False, fault))
            return
        end = stream.next_offset + batch.count
        account.store(stream, end, size)
        if done is None:
            self.publish(batch, route, None, packet_ids)
            return

        def told(matched: bool, fault: Fault | None) -> None:
            if fault is not None:
                account.unstore(stream, end, size)
            done(matched, fault)

        self.publish(batch, route, told, packet_ids)

    def _retain_in_turn(self, batch: Batch) -> None:
        """Retain a batch, but not before what came earlier on its topic and is not safe yet."""
        if batch.topic not in self._to_retain:
            self.retain(batch)
            return
        retained = self._retaining(batch.topic, None)

        def turn() -> None:
            self.retain(batch)
            retained(False, None)

        self.journal.in_turn(turn)

    def _retaining(self, topic: bytes, done: Done | None) -> Done:
        """Note that a message on a topic is retained later, until the call is made that is returned."""
        waiting = self._to_retain
        waiting[topic] = waiting.get(topic, 0) + 1

        def retained(matched: bool, fault: Fault | None) -> None:
            waiting[topic] -= 1
            if not waiting[topic]:
                del waiting[topic]
            if done is not None:
                done(matched, fault)

        return retained

    def _pass_on(self, batch: Batch, done: Done | None) -> None:
        matched, fault = False, None
        try:
            matched = self.distribute(batch)
        except Exception as error:
            self.mistake(batch)
            fault = Fault(False, f"internal error: {error!r}")
        if done is not None:
            done(matched, fault)

    def mistake(self, batch: Batch) -> None:
        """Note that a batch could not be distributed; to be called on an error."""
        logger.exception("internal error: not everyone was given a message on %r", batch.topic[:200])

    def distribute(self, batch: Batch) -> bool:
        """Give a batch that is safe now to everyone who asked for it; tell whether there is anyone."""
        routes = self.subscriptions
        if not isinstance(batch, MixedBatch):
            matched = self.send(batch, routes.routes.get(batch.topic) or routes.route(batch.topic))
        else:
            found = {routes.routes.get(topic) or routes.route(topic) for topic in batch.topics}
            if len(found) == 1:
                matched = self.send(batch, found.pop())
            else:  # a subscription came or went meanwhile
                matched = sum(self.send(part, routes.route(part.topic)) for part in batch.parts()) > 0
        if batch.retain:
            self.retain(batch)
        return matched

    def send(self, batch: Batch, route: Route, begins: bool = False) -> bool:
        """Give a batch to everyone on its route; tell whether there is anyone. HOT.

        If that takes long, it is queued; it may begin at once if the caller says so.
        """
        if route.is_wide or batch.count > RUN or self._fan_outs:
            self.fan_outs.send(batch, route, begins)
            return route.receivers > 0
        for target in route.targets:
            session = target.session
            if target.no_local and session.client_id == batch.origin:
                if target.own is not None:
                    session.deliver(batch, target.own)
                continue  # [MQTT-3.8.3-3]
            if batch.qos:
                session.deliver(batch, target)
            elif session.link is not None:
                session.link.forward(batch, target)
            elif target.latest:
                session.keep_latest(batch)
        for group in route.groups:
            self.deal(batch, group)
        return route.receivers > 0

    def deal(self, batch: Batch, group: SharedGroup, besides: Session | None = None) -> None:
        """Give a batch to the members of a shared subscription, each message to one of them."""
        if batch.stream is None or not batch.qos:
            for member, start, stop in group.shares(batch.count, besides):
                member.session.deliver(batch.part(start, stop), member)
        elif batch.stream not in group.positions:
            dealt = 0 if group.returned else self.deal_out(batch, group)
            if dealt < batch.count:
                group.positions[batch.stream] = batch.offset + dealt
                self.fall_behind(group)

    def deal_out(self, batch: Batch, group: SharedGroup) -> int:
        """Deal as many messages, from the first, as members can be sent now; return how many."""
        dealt = before = 0
        while dealt < batch.count:
            members = group.with_room()
            share = -(-(batch.count - dealt) // max(1, len(members)))
            for member in members:
                if dealt == batch.count:
                    break
                part = batch.part(dealt, min(dealt + share, batch.count))
                taken = member.session.send_share(part, member)
                if taken:
                    dealt += taken
                    group.had_turn(member)
            if dealt == before:
                break
            before = dealt
        return dealt

    def give_back(self, batch: Batch, group: SharedGroup) -> None:
        """Take back what a member was dealt and did not acknowledge, for others to have."""
        group.returned.append(batch)
        self.fall_behind(group)

    def give_back_to_one_of(self, places: list[Batch], groups: list[SharedGroup]) -> None:
        """The same, for messages of which only the place in the log is known, not even the topic."""

        def found(batches: dict[int, Batch]) -> None:
            for batch in batches.values():
                for group in groups:
                    if group.members and matches(group.topic_filter, batch.topic):
                        self.give_back(batch, group)
                        break

        for place in places:
            assert place.stream is not None
            offsets = range(place.offset, place.offset + place.count)
            self.journal.fetch(place.stream, offsets, found)

    def fall_behind(self, group: SharedGroup) -> None:
        """Have a group deal from the log, as members have room."""
        self.groups_behind.add(group)
        if group.reader is None:
            group.reader = GroupReader(self, group)
        self.journal.state.save_group(group)
        group.reader.pump()

    # Reading the log

    def catch_up(self, session: Session) -> None:
        """Send a session that is connected what it missed."""
        if not any(one.qos and one.group is None for one in session.subscriptions.values()):
            session.positions = None  # QoS 0 is not sent to who was away
            return
        if session.follower is None:
            session.follower = CatchUp(self, session)
        session.follower.pump()

    def replay(
        self,
        key: bytes,
        subscription: Subscription,
        positions: dict[Stream, int],
        seen: dict[Stream, int] | None = None,
        until: tuple[Stream, int] | None = None,
    ) -> None:
        """Send a subscription the past from `positions` on, then what comes in; its session is connected."""
        self.subscriptions.remove(subscription)
        replay = Replay(self, key, subscription, positions, seen, until)
        session = subscription.session
        session.add_replay(replay)
        self._save_subscription(key, subscription)
        replay.pump()

    def replay_from(self, key: bytes, subscription: Subscription, position: Position) -> None:
        """Send a subscription the past from a point on that was asked for, then what comes in."""
        journal = self.journal
        self.fan_outs.settle(subscription.session)
        self._end_replay(subscription)
        subscription.since = None
        match position:
            case Earliest():
                self.replay(key, subscription, {one: journal.earliest(one) for one in journal.streams})
            case Offset(offset):
                self.replay(key, subscription, {one: min(offset, one.routed) for one in journal.streams})
            case Latest():
                self.replay(key, subscription, {one: one.routed for one in journal.streams})
            case _:
                self._replay_since(key, subscription, position.seconds(journal.wall()))

    def _replay_since(self, key: bytes, subscription: Subscription, when: float) -> None:
        streams = self.journal.streams
        self.subscriptions.remove(subscription)  # until it is known where to begin
        found: dict[Stream, int] = {}

        def answer(stream: Stream, offset: int) -> None:
            found[stream] = offset
            if len(found) == len(streams) and subscription.session.subscriptions.get(key) is subscription:
                self.replay(key, subscription, found)

        for stream in streams:
            self.journal.offset_at(stream, when, partial(answer, stream))

    def go_on_replaying(self, session: Session) -> None:
        """Go on with what was sent of the past when the session's connection ended."""
        replays, session.replays = session.replays or (), None
        for replay in replays:
            again = replay.again()
            session.add_replay(again)
            again.pump()

    def go_live(self, key: bytes, subscription: Subscription) -> None:
        """Have a subscription that has been sent the past take part in what comes in."""
        session = subscription.session
        session.remove_replay(subscription.replay)
        subscription.replay = None
        subscription.aside = False
        subscription.since = {stream: stream.routed for stream in self.journal.streams}
        self.subscriptions.add(subscription)
        self._save_subscription(key, subscription)

    def leave_behind(self, target: Subscription, batch: Batch) -> None:
        """Have subscriptions that there is no room for now be sent the batch, and what follows, later."""
        session, stream = target.session, batch.stream
        assert stream is not None
        owed = [batch, *(one for one in self.fan_outs.owed_to(session) if one.stream is not None)]
        for key, subscription in list(session.subscriptions.items()):
            if (
                subscription.lossless
                and subscription.group is None
                and subscription.replay is None
                and any(matches(subscription.topic_filter, part.topic) for part in batch.parts())
            ):
                first = lowest_offsets(owed)
                positions = {one: min(one.routed, first.get(one, one.routed)) for one in self.journal.streams}
                unseen = lowest_offsets(one for one in owed if not one.qos)
                seen = {one: unseen.get(one, one.next_offset) for one in self.journal.streams}
                self.replay(key, subscription, positions, seen, (stream, batch.offset + batch.count))
        self.fan_outs.retarget(session)

    def retain_fault(self, batch: Batch) -> Fault | None:
        """Return why a batch's last message cannot be retained for its owner, if it cannot."""
        topic = batch.topic
        size = retained_size(batch)
        if topic.startswith(SYSTEM) or batch.stride == batch.payload_at:
            return None  # an empty message removes what is retained
        owner = self.quotas.kept(batch.owner)
        before = self.retained.values.get(topic)
        more, more_bytes = int(before is None), size - (0 if before is None else retained_size(before))
        if self.retained.messages + more > self.limits.max_retained_messages:
            return Fault(True, "there are too many kept values")
        if more_bytes > 0 and self.retained.bytes + more_bytes > self.limits.retained_bytes:
            return Fault(True, "the kept values take too many bytes")
        if owner is None:
            return None
        if before is None or self.quotas.kept(before.owner) is not owner:
            more, more_bytes = 1, size
        refusal = owner.refusal("retained_messages", more) if more else ""
        if not refusal and more_bytes > 0:
            refusal = owner.refusal("retained_bytes", more_bytes)
        return Fault(True, refusal, quota=True) if refusal else None

    def retain(self, batch: Batch) -> None:
        """Retain a batch's last message, or forget what is retained on its topic if that is empty."""
        last = batch.count - 1
        payload = batch.payload(last)
        if not payload:
            self.retained.pop(batch.topic)  # [MQTT-3.3.1-6], [MQTT-3.3.1-7]
            self.journal.state.drop_retained(batch.topic)
        elif self.retain_fault(batch) is not None:
            self.figures.retained_refused += 1
        else:
            system = batch.topic.startswith(SYSTEM)
            retained = Batch(
                batch.topic, payload, batch.qos, True, batch.properties, batch.expires_at, batch.origin
            )
            if batch.owner is not None:
                retained = retained.owned_by(batch.owner)
            retained.lies_in(batch.stream, batch.offset + last)
            self.retained[batch.topic] = retained
            if not system:
                self.journal.state.save_retained(retained)

    def retained_for(self, topic_filter: bytes) -> Iterator[Batch | None]:
        """Yield the retained messages that match a filter, in the order of their topics.

        Each step takes a bounded time, and yields None where it found no message. Messages may come and go
        between two steps.
        """
        for topic in walk((self.retained,), topic_filter):
            yield None if topic is None else self._retained_on(topic)

    def _retained_on(self, topic: bytes) -> Batch | None:
        """Return what is retained on a topic; what has expired is removed."""
        batch = self.retained.values.get(topic)
        if batch is not None and batch.expires_at is not None and batch.expires_at <= self.now:
            self.retained.pop(topic)  # [MQTT-3.3.2-5]
            self.journal.state.drop_retained(topic)
            return None
        return batch

    # Topics

    def create_topic(self, topic: bytes) -> str:
        """Create a topic, if it is not there; return why it may not be, or nothing."""
        refusal = self.catalog.create_refusal(topic)
        if not refusal and topic not in self.catalog.created.values:
            if len(self.catalog.created) >= self.limits.max_created_topics:
                return "there are too many topics"
            self.catalog.create(topic)
        return refusal

    def delete_topic(self, topic: bytes) -> str:
        """Delete a topic and its kept value; return why it cannot be, or nothing."""
        if self.catalog.is_fixed(topic):
            return f"the topic {topic.decode()!r} is in the configuration, and stays"
        existed = self.catalog.delete(topic)
        if topic in self.retained.values and not topic.startswith(SYSTEM):
            self.retained.pop(topic)
            self.journal.state.drop_retained(topic)
            existed = True
        return "" if existed else f"there is no topic {topic.decode()!r}"

    def topics_for(self, topic_filter: bytes) -> Iterator[tuple[bytes, bytes | None] | None]:
        """Yield the topics that match a filter and were created or have a retained message, in order.

        Each comes with its retained payload, or None. Like `retained_for`, it yields None where it found
        nothing.
        """
        created = self.catalog.created
        for topic in walk((created, self.retained), topic_filter):
            if topic is None:
                yield None
                continue
            batch = self._retained_on(topic)
            if batch is not None:
                yield topic, batch.payload()
            else:
                yield (topic, None) if topic in created.values else None

    # Subscriptions

    def subscribe(self, subscription: Subscription, group_name: str | None, key: bytes) -> bool:
        """Add a subscription or replace the one under `key`, its full filter; tell whether it was new."""
        session = subscription.session
        self.fan_outs.settle(session)
        if session.subscriptions is NO_SUBSCRIPTIONS:
            session.subscriptions = {}
        before = session.subscriptions.get(key)
        replay = None if before is None else before.replay
        if before is not None:
            self._end_replay(before)
        session.subscriptions[key] = subscription
        if before is None and session.account is not None:
            session.account.subscriptions += 1
        if before is not None:
            subscription.since = before.since  # what it missed under the old one is still its due
        elif self.journal.streams:
            subscription.since = {stream: stream.routed for stream in self.journal.streams}
        new = self.subscriptions.add(subscription, group_name) and before is None
        self._free_routes()
        if replay is not None:  # it is still to be sent the past that was asked for, and what came meanwhile
            self.subscriptions.remove(subscription)
            successor = replay.succeeded_by(subscription)
            session.add_replay(successor)
            self.timers.set(successor, self.now)
        self._save_subscription(key, subscription)
        if subscription.group is not None and session.lasting:
            # Without this, the group would begin at its position before a crash.
            self.journal.state.save_group(subscription.group)
        return new

    def _save_subscription(self, key: bytes, subscription: Subscription) -> None:
        if subscription.session.lasting:
            self.journal.state.save_subscription(subscription.session, key, subscription)

    def _end_replay(self, subscription: Subscription) -> None:
        replay, session = subscription.replay, subscription.session
        if replay is not None:
            replay.stop()
            session.remove_replay(replay)
            subscription.replay = None

    def unsubscribe(self, session: Session, key: bytes) -> bool:
        """Remove the subscription under `key`; tell whether there was one."""
        self.fan_outs.settle(session)
        subscription = session.subscriptions.pop(key, None)
        if subscription is None:
            return False
        if session.account is not None:
            session.account.subscriptions -= 1
        self._end_replay(subscription)
        self._remove(subscription)
        if subscription.latest and session.latest is not None:
            steps = session.latest.remove_matching(subscription.topic_filter)
            if sum(1 for _ in islice(steps, FREED_TOGETHER)) == FREED_TOGETHER:
                self.free(steps)
        if session.lasting:
            self.journal.state.drop_subscription(session, key)
        return True

    def prune(self, session: Session, credentials: Credentials) -> None:
        """Take away the subscriptions that a client may not have, any more or as who it is now.

        And what waits for it that it may not read.
        """
        identity = (credentials.username, credentials.groups)
        if session.identity != identity:
            session.withhold_answers()
            session.identity = identity
        may_read = self.reading_rights(session, credentials)
        if may_read is None:
            return
        for key, subscription in list(session.subscriptions.items()):
            if not self.access.may_subscribe(credentials, subscription.topic_filter.decode()):
                self.unsubscribe(session, key)
        session.withhold(may_read)

    def rights_of(self, session: Session) -> object:
        """Return what says which rights the user of a session has: equal as long as they are the same."""
        return (session.identity, self.admission.version, self.access)

    def reading_rights(self, session: Session, credentials: Credentials) -> MayRead | None:
        """Return what tells which topics a client may be sent messages of; None if it may be of all.

        Who may subscribe to a filter may be sent what it matches, also by a plug-in that knows filters alone.
        None as well if the session was pruned for this user and his rights have not changed since.
        """
        if not self.access.checks_topics:
            return None
        if self.access.tells_of_changes and session.pruned_as == self.rights_of(session):
            return None

        @cache
        def may_read(topic: bytes) -> bool:
            if self.access.may_subscribe(credentials, topic.decode()):
                return True
            return asks_for(session, topic)

        return may_read

    def _remove(self, subscription: Subscription) -> None:
        """Take a subscription out of the tree, and forget its group if it was the last of it."""
        self.subscriptions.remove(subscription)
        self._free_routes()
        group = subscription.group
        if group is not None and not group.members:
            if group.reader is not None:
                group.reader.stop()
            self.groups_behind.discard(group)
            self.journal.state.drop_group(group)

    def _remove_in_turns(self, subscriptions: list[Subscription]) -> None:
        """Take the subscriptions of a session that ends out of the tree; if they are many, in turns.

        Shared subscriptions deal it nothing from here on: that would be lost.
        """
        if len(subscriptions) <= REMOVED_TOGETHER:
            for subscription in subscriptions:
                self._remove(subscription)
            return
        for subscription in subscriptions:
            if subscription.group is not None:
                self.subscriptions.leave_group(subscription)
        if not self._leaving:
            self.soon(self._remove_more)
        self._leaving += subscriptions

    def _remove_more(self) -> None:
        until = self.clock() + TURN
        leaving = self._leaving
        while leaving:
            for _ in range(min(REMOVED_TOGETHER, len(leaving))):
                self._remove(leaving.pop())
            if leaving and self.clock() > until:
                self.soon(self._remove_more)
                return

    def free(self, *steps: Iterator[None]) -> None:
        """Free memory in turns: each of `steps` frees some, which nothing else needs."""
        if not self._unneeded:
            self.soon(self._free_more)
        self._unneeded += steps

    def _free_more(self) -> None:
        until = self.clock() + TURN
        while self._unneeded:
            steps = self._unneeded[-1]
            if sum(1 for _ in islice(steps, FREED_TOGETHER)) < FREED_TOGETHER:
                self._unneeded.pop()
            if self._unneeded and self.clock() > until:
                self.soon(self._free_more)
                return

    def _free_routes(self) -> None:
        """Free the routes that were forgotten with a change of a subscription."""
        forgotten = self.subscriptions.forgotten
        while forgotten:
            self.free(forgotten.pop().take_apart())

    def send_retained(self, subscription: Subscription) -> Iterator[None]:
        """Send a subscriber what is retained on its topics: at most one message at each step."""
        # The flag says that these were retained, whatever the subscription wants of live messages
        # [MQTT-3.3.1-8]; and only this subscription's identifier goes with them.
        target = Subscription(
            subscription.session,
            subscription.topic_filter,
            subscription.qos,
            retain_as_published=True,
            identifiers=subscription.identifiers,
        )
        target.aside = True
        target.latest = subscription.latest
        for batch in self.retained_for(subscription.topic_filter):
            if batch is None:
                yield
                continue
            if subscription.topic_filter not in subscription.session.subscriptions:
                return  # it was taken away while the others were on their way
            if not (subscription.no_local and batch.origin == subscription.session.client_id):
                subscription.session.deliver_retained(batch, target)
                batch.wires = None  # what is retained is kept once, not in every form
            yield

    # Back-pressure

    def choke(self, turn: Turn) -> None:
        """Have someone wait until the journal has written some of what it was given."""
        self._choked.append(turn)
        self.journal.choked()

    def has_to_wait(self, turn: Turn, until: float) -> bool:
        """Tell whether someone's turn is over; then there will be another, when the journal has room."""
        if self.journal.full:
            self.choke(turn)
        elif self.clock() > until:
            self.interrupted(turn)
        else:
            return False
        return True

    def unchoke(self) -> None:
        """Let those go on who had to wait for the journal."""
        turns, self._choked = self._choked, []
        for turn in turns:
            self.interrupted(turn)

    # Sessions

    def new_client_id(self) -> str:
        """Return a client id that no session has."""
        return f"pyrite-{secrets.token_hex(10)}"

    def open_session(
        self, client_id: str, clean_start: bool, account: Account | None = None
    ) -> tuple[Session, bool]:
        """Return the session of a client that connects, and whether it was there before.

        It counts for `account` from now on. A connection that holds it now is displaced [MQTT-3.1.4-3].
        """
        session = self.sessions.get(client_id)
        if session is not None:
            self.session_due(session)  # its time may have come since the last tick, or before a restart
            if session.link is not None:
                link = session.link
                link.displaced()
                self.close_session(session, link, True, resumed=not clean_start, replaced=clean_start)
            if clean_start and client_id in self.sessions:
                self.end_session(session)  # [MQTT-3.1.2-4]
        session = self.sessions.get(client_id)
        if session is not None:
            session.expires_at = None
            self.own(session, account)
            return session, True
        session = self._new_session(client_id)
        self.own(session, account)
        return session, False

    def own(self, session: Session, account: Account | None) -> None:
        """Count a session for an account from now on."""
        before = session.account
        self.quotas.own(session, account)
        if session.account is not before and session.lasting:
            self.journal.state.save_owner(session)

    def _new_session(self, client_id: str) -> Session:
        session = self.sessions[client_id] = Session(self, client_id)
        self.client_ids.add(client_id)
        return session

    def set_expiry(self, session: Session, expiry: int) -> None:
        """Set for how long a session outlives its connection, and note it if it outlives the process too."""
        session.expiry = expiry
        if self.journal.lasting and (expiry or session.lasting):
            if session.record is None:
                session.record = DeliveryRecord(session, snapshot(session))
                self.journal.state.save_owner(session)
                self.journal.state.save_deliveries(session)
            self.journal.state.save_session(session)

    def restore_session(self, client_id: str, expiry: int) -> Session:
        """Make a session that a broker before this one had."""
        session = self._new_session(client_id)
        session.expiry = expiry
        return session

    def restore_subscription(self, key: bytes, subscription: Subscription, group_name: str | None) -> None:
        """Make a subscription that a broker before this one had."""
        session = subscription.session
        if session.subscriptions is NO_SUBSCRIPTIONS:
            session.subscriptions = {}
        session.subscriptions[key] = subscription
        if session.account is not None:
            session.account.subscriptions += 1
        self.subscriptions.add(subscription, group_name)

    def restored(self, session: Session) -> None:
        """Watch the time of a session that was restored: its client is away since the broker stopped."""
        if session.expires_at is None and session.expiry != NEVER:
            session.expires_at = self.now + session.expiry
            self.journal.state.save_session(session)  # or each restart would give it all that time again
        self._wait(session)

    def restored_group(self, group: SharedGroup) -> None:
        """Have a shared subscription that was restored go on where it was."""
        if group.positions or group.returned:
            self.fall_behind(group)

    def attached(self, session: Session, link: Link, window: int) -> None:
        """Connect a session and a link: the client has been let in."""
        self.timers.cancel(session)
        self.presence += 1
        session.attach(link, window)
        account = session.account
        if account is not None:
            account.connections += 1
            link.meter = account.meter
            if account.meter is not None and not session.lasting:
                # What it publishes must count for the account after a crash, too.
                self.journal.state.save_owner(session)
        figures = self.figures
        figures.connections += 1
        figures.clients_maximum = max(figures.clients_maximum, len(self.sessions))

    def close_session(
        self, session: Session, link: Link, send_will: bool, resumed: bool = False, replaced: bool = False
    ) -> None:
        """Note that a client's connection is over; its will goes out, now or later, if `send_will`.

        `resumed` says that another connection goes on with the session, so a delayed will is not sent.
        `replaced` says that the caller ends the session next, whenever it would expire.
        """
        if session.link is not link:
            return
        self.figures.connections -= 1
        if session.account is not None:
            session.account.connections -= 1
        self.presence += 1
        session.detach(ends=replaced or session.expiry == 0)
        will = session.will
        if not send_will:
            session.will = None  # [MQTT-3.14.4-3]
        elif will is not None:
            if will.delay == 0 or session.expiry == 0:
                self._send_will(session)
            elif resumed:
                session.will = None  # [MQTT-3.1.3-9]
            else:
                session.will_at = self.now + will.delay
        if session.expiry == 0:
            self.end_session(session)  # [MQTT-3.1.2-23]
            return
        if resumed:
            return
        if session.expiry != NEVER:
            session.expires_at = self.now + session.expiry
        if session.lasting:
            self.journal.state.save_session(session)
        self._wait(session)

    def _wait(self, session: Session) -> None:
        times = [when for when in (session.will_at, session.expires_at) if when is not None]
        if times:
            self.timers.set(session, min(times))

    def session_due(self, session: Session) -> None:
        """Send the will of a session that is away, or end it, as its time has come."""
        if session.link is not None:
            return
        if session.expires_at is not None and session.expires_at <= self.now:
            self.figures.clients_expired += 1
            self.end_session(session)
            return
        if session.will_at is not None and session.will_at <= self.now:
            self._send_will(session)
        self._wait(session)

    def end_session(self, session: Session) -> None:
        """Forget a session and all that belongs to it."""
        self.timers.cancel(session)
        del self.sessions[session.client_id]
        self.client_ids.remove(session.client_id)
        account = session.account
        if account is not None:
            account.sessions -= 1
            account.subscriptions -= len(session.subscriptions)
            self.journal.state.drop_owner(session)
        subscriptions = list(session.subscriptions.values())
        groups: list[SharedGroup] = []
        if session.is_dealt_to:
            groups = [one.group for one in subscriptions if one.group is not None]
        if session.replays:
            for subscription in subscriptions:
                self._end_replay(subscription)
        self._remove_in_turns(subscriptions)
        session.subscriptions = NO_SUBSCRIPTIONS
        if session.will is not None:
            self._send_will(session)  # [MQTT-3.1.2-8]: a delayed will goes out when the session ends
        return_restored(session, groups)
        lasting = session.lasting
        session.end()
        if lasting:
            self.journal.state.drop_session(session)

    def _may_leave(self, will: Will) -> bool:
        """Tell whether who left a will may still publish there: rules may have changed since it connected."""
        return not self.access.checks_topics or self.access.may_publish(
            will.author, will.batch.topic.decode()
        )

    def _send_will(self, session: Session) -> None:
        will = session.will
        session.will = None
        session.will_at = None
        if will is not None and self._may_leave(will):
            batch = will.batch
            if batch.properties is not None and batch.properties.message_expiry is not None:
                batch.expires_at = self.now + batch.properties.message_expiry
            account = session.account
            if batch.retain:
                batch = batch.owned_by(account)
            if account is None or account.meter is None:
                self.publish(batch)
            else:
                account.charge(1, len(batch.data))
                self.publish_for(account, batch)
