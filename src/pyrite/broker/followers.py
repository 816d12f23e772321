"""Followers: read the log from a position until they have caught up with new messages.

Three kinds exist: for a session that was away or is slow, for a subscription that requests past messages, and
for a shared group without room. The log is read a piece at a time, as the reader has room, and at most one
piece is in memory. A follower has caught up when it has delivered everything that was routed; from then on
its reader takes messages as they are routed. All of this runs in one thread, so no message can slip in
between.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from pyrite.broker.journal import Piece, Stream, Wanted
from pyrite.broker.timers import NO_SLOT, TURN
from pyrite.process.fair import Asker

if TYPE_CHECKING:
    from pyrite.broker.core import Broker
    from pyrite.broker.message import Batch
    from pyrite.broker.session import Session
    from pyrite.broker.shared_group import SharedGroup
    from pyrite.broker.subscriptions import Subscription


ROUNDS_BEFORE_INLINE = 8
MAX_INLINE_BACKLOG = 1_000
"""After so many rounds of reading, a backlog below this many messages is read in the broker's thread."""
RETRY_INTERVAL = 0.1
"""Seconds between two checks for room."""
PACKET_OVERHEAD = 64
"""Upper estimate of the bytes of a packet besides topic and payload."""


class Follower:
    """Reads streams from given positions, and delivers messages as its reader has room."""

    all_at_once = False
    """Whether to keep reading a stream that has caught up until all streams have."""

    def __init__(self, broker: Broker, positions: dict[Stream, int]) -> None:
        self.broker = broker
        self.positions = positions
        """The next offset of each stream; streams that have caught up are removed."""
        self._waiting: deque[Batch] = deque()
        """Batches that were read and not taken yet."""
        self._reading = False
        self._stopped = False
        self._is_reading_on = False
        self._will_read_on = False
        """Whether another turn has been requested."""
        self._rounds = 0

    def stop(self) -> None:
        """Stop reading, and discard what is being read."""
        self._stopped = True
        self.positions.update(self.reached_positions())
        self._waiting.clear()

    def reached_positions(self) -> dict[Stream, int]:
        """Return the offset of each stream up to which messages were taken."""
        reached = dict(self.positions)
        for batch in self._waiting:
            if batch.stream is not None:
                reached[batch.stream] = min(batch.offset, reached.get(batch.stream, batch.offset))
        return reached

    def read_on(self) -> None:
        """Read on, if the reader has room and no read is in progress."""
        if self._is_reading_on:
            return
        self._is_reading_on = True
        clock = self.broker.clock
        until, count = clock() + TURN if self._waiting else 0.0, 0
        try:
            while not self._stopped and not self._reading and self.has_room():
                if self._waiting:
                    count += 1
                    if count > 1 and clock() > until:
                        self._read_on_later()
                        return
                    self._take_one()
                    continue
                behind = self._behind()
                if behind is not None:
                    self._read(*behind)
                elif not self.may_go_live():
                    return
                else:
                    self._stopped = True
                    self.caught_up()
        finally:
            self._is_reading_on = False

    def _read_on_later(self) -> None:
        """Continue in another turn."""
        if not self._will_read_on:
            self._will_read_on = True
            self.broker.turns.soon(self._read_on_again)

    def _read_on_again(self) -> None:
        self._will_read_on = False
        self.read_on()

    def _take_one(self) -> None:
        batch = self._waiting[0]
        if batch.expires_at is not None and batch.expires_at <= self.broker.now:
            taken = batch.count  # [MQTT-3.3.2-5]
        else:
            taken = self.take(batch)
        if taken == batch.count:
            self._waiting.popleft()
        elif taken:
            self._waiting[0] = batch.part(taken, batch.count)

    def _behind(self) -> tuple[Stream, int] | None:
        """Return a stream with a backlog and its next offset; mark the other streams as caught up."""
        for stream, position in list(self.positions.items()):
            if position < stream.routed:
                return stream, position
            if not self.all_at_once:
                self.settle()
                del self.positions[stream]
        return None

    def _read(self, stream: Stream, position: int) -> None:
        self._reading = True

        def answer(piece: Piece) -> None:
            self._reading = False
            if not self._stopped:
                self.positions[stream] = piece.next_offset
                self._waiting.extend(piece.batches)
                self.read_on()

        # Among several busy streams one is always slightly behind, unless its last messages are read at once.
        self._rounds += 1
        last = (
            self.all_at_once
            and self._rounds > ROUNDS_BEFORE_INLINE
            and stream.routed - position < MAX_INLINE_BACKLOG
        )
        self.broker.journal.read(
            stream, position, stream.routed, self.wanted(), answer, self.asker(), at_once=last
        )

    # To be implemented by each kind of follower

    def settle(self) -> None:
        """Finish pending fan-outs to the reader, which has read those messages from the log."""

    def wanted(self) -> Wanted:
        """Return which messages to read."""
        raise NotImplementedError

    def asker(self) -> Asker:
        """Return the user for whom the log is read."""
        raise NotImplementedError

    def has_room(self) -> bool:
        """Return whether the reader can take more messages."""
        raise NotImplementedError

    def take(self, batch: Batch) -> int:
        """Deliver a batch; return how many of its messages were taken."""
        raise NotImplementedError

    def may_go_live(self) -> bool:
        """Return whether the reader can switch to new messages; otherwise, call again later."""
        return True

    def caught_up(self) -> None:
        """Switch the reader to new messages."""
        raise NotImplementedError


class CatchUp(Follower):
    """Sends a session the messages it missed while away or slow. Shares the session's positions."""

    def __init__(self, broker: Broker, session: Session) -> None:
        assert session.positions is not None
        super().__init__(broker, session.positions)
        broker.figures.sessions_behind += 1
        self._session = session
        self._wanted: Wanted | None = None
        self._version = -1

    def wanted(self) -> Wanted:
        """Return the filters of the session's own subscriptions."""
        version = self.broker.subscriptions.version
        if self._wanted is None or version != self._version:
            wishes = self._session.subscriptions.values()
            filters = [one.topic_filter for one in wishes if one.qos and one.group is None]
            self._wanted = Wanted(filters, least_qos=1)
            self._version = version
        return self._wanted

    def asker(self) -> Asker:
        """Return the session's client."""
        return self._session.asker

    def settle(self) -> None:
        """Finish pending fan-outs to the session."""
        self.broker.fan_outs.settle(self._session)

    def has_room(self) -> bool:
        """Return whether the session can take more messages."""
        return self._session.has_room

    def stop(self) -> None:
        """Stop reading."""
        super().stop()
        self.broker.figures.sessions_behind -= 1

    def take(self, batch: Batch) -> int:
        """Deliver a batch to the session."""
        self._session.deliver_missed(batch)
        return batch.count

    def caught_up(self) -> None:
        """Let the session take messages as they are routed."""
        self.broker.figures.sessions_behind -= 1
        self._session.positions = None
        self._session.follower = None


class Replay(Follower):
    """Sends a subscription past messages, before new ones."""

    all_at_once = True  # the subscription goes live as a whole

    def __init__(
        self,
        broker: Broker,
        key: bytes,
        subscription: Subscription,
        positions: dict[Stream, int],
        seen: dict[Stream, int] | None = None,
        until: tuple[Stream, int] | None = None,
    ) -> None:
        super().__init__(broker, positions)
        self.slot = NO_SLOT
        self._until = until
        """A stream, and the offset up to which it must be routed first: a message before it was not sent."""
        self.key = key
        self.subscription = subscription
        self._wanted = Wanted([subscription.topic_filter])
        self._seen = seen or {}
        """Offsets below which QoS 0 messages were sent already, before the subscription fell behind."""
        self.reached = dict(positions)
        """Offsets up to which messages have been sent: this is saved."""
        subscription.keeps_cursor = True
        subscription.replay = self

    def wanted(self) -> Wanted:
        """Return the subscription's filter."""
        return self._wanted

    def asker(self) -> Asker:
        """Return the subscription's client."""
        return self.subscription.session.asker

    def has_room(self) -> bool:
        """Return whether both the session and the client's connection can take more messages.

        When the subscription goes live, its session's queue must be empty: queued messages would not be
        known to be unsent.
        """
        session = self.subscription.session
        link = session.link
        if link is None or not link.is_roomy or not session.has_room or session.queue.messages:
            return False
        return not self._waiting or self._fits(self._waiting[0].part(0, 1))

    def _fits(self, batch: Batch) -> bool:
        """Return whether the client's connection has room for a batch; an empty output buffer takes any."""
        link = self.subscription.session.link
        if link is None:
            return False
        size = batch.count * (batch.stride + PACKET_OVERHEAD + len(batch.topic))
        return link.room >= size or link.room == self.broker.limits.max_waiting_bytes

    def take(self, batch: Batch) -> int:
        """Send a batch for the subscription."""
        subscription = self.subscription
        session, stream = subscription.session, batch.stream
        assert stream is not None
        if subscription.no_local and batch.origin == session.client_id:
            return batch.count
        qos = min(batch.qos, subscription.qos)
        if qos:
            session.deliver_from_log(batch, qos, subscription)
            return batch.count
        seen = self._seen.get(stream, 0) - batch.offset
        if batch.qos == 0 and seen > 0:
            return min(seen, batch.count)
        assert session.link is not None
        count = min(
            batch.count, max(1, session.link.room // (batch.stride + PACKET_OVERHEAD + len(batch.topic)))
        )
        session.link.send_qos0(batch.part(0, count), subscription)
        if not session.queue.messages:
            self.reached[stream] = batch.offset + count
        return count

    def sent(self, stream: Stream, offset: int) -> None:
        """Save how far the client has been sent messages, in case of a crash."""
        self.reached[stream] = offset
        self.broker.journal.state.save_subscription(self.subscription.session, self.key, self.subscription)

    def again(self) -> Replay:
        """Return a replay that continues this stopped one, for the client's new connection."""
        return Replay(self.broker, self.key, self.subscription, dict(self.reached), self._seen, self._until)

    def succeeded_by(self, subscription: Subscription) -> Replay:
        """Return a replay that continues this one for a subscription that replaces this one's.

        The session still sends what this one has taken; its progress counts for the successor.
        """
        successor = Replay(self.broker, self.key, subscription, dict(self.positions), self._seen, self._until)
        successor.reached = self.reached
        self.subscription.replay = successor
        return successor

    def _unrouted(self) -> list[Batch]:
        """Return wanted batches that were delivered to others, but cannot be read from the log yet."""
        subscription, wanted = self.subscription, self.wanted()
        return [
            part.part(max(0, self._seen.get(stream, 0) - part.offset), part.count)
            for stream in self.broker.journal.streams
            for batch in self.broker.journal.unrouted(stream)
            for part in batch.parts()
            if part.offset + part.count > self._seen.get(stream, 0)
            and wanted(part.topic)
            and not (subscription.no_local and part.origin == subscription.session.client_id)
        ]

    def may_go_live(self) -> bool:
        """Return whether there is room for batches that are not in the log yet; if not, check again later."""
        link = self.subscription.session.link
        waits = self._until is not None and self._until[0].routed < self._until[1]
        size = sum(one.count * (one.stride + PACKET_OVERHEAD + len(one.topic)) for one in self._unrouted())
        if not waits and link is not None and (not size or size <= link.room):
            return True
        self.broker.timers.set(self, self.broker.now + RETRY_INTERVAL)
        return False

    def due(self) -> None:
        """Check for room again."""
        self.read_on()

    def stop(self) -> None:
        """Read no more."""
        super().stop()
        self.broker.timers.cancel(self)

    def caught_up(self) -> None:
        """Send batches that were routed but are not in the log yet, then make the subscription live."""
        link = self.subscription.session.link
        for part in self._unrouted():
            if link is not None:
                link.send_qos0(part, self.subscription)
        self.broker.timers.cancel(self)
        self.broker.following.go_live(self.key, self.subscription)


class GroupReader(Follower):
    """Delivers to a shared group the messages for which no member had room."""

    def __init__(self, broker: Broker, group: SharedGroup) -> None:
        super().__init__(broker, group.positions)
        self._group = group
        self._wanted = Wanted([group.topic_filter], least_qos=1)

    def wanted(self) -> Wanted:
        """Return the group's filter."""
        return self._wanted

    def asker(self) -> Asker:
        """Return the user of a member, for whom the log is read on behalf of the whole group."""
        member = next(iter(self._group.members), None)
        user = "" if member is None else member.session.asker.user
        return Asker(user, self._group.topic_filter.decode("utf-8", "replace"))

    def settle(self) -> None:
        """Finish pending fan-outs to the group."""
        self.broker.fan_outs.settle_group(self._group)

    def has_room(self) -> bool:
        """Return whether any member can take more messages."""
        return any(member.session.capacity for member in self._group.members)

    def read_on(self) -> None:
        """Deliver returned messages first, then those in the log."""
        group = self._group
        clock = self.broker.clock
        until, count = clock() + TURN if group.returned else 0.0, 0
        while group.returned and self.has_room():
            count += 1
            if count > 1 and clock() > until:
                self._read_on_later()
                return
            batch = group.returned[0]
            if batch.absent:
                self._fetch(batch)
                return
            expired = batch.expires_at is not None and batch.expires_at <= self.broker.now
            taken = batch.count if expired else self.take(batch)  # [MQTT-3.3.2-5]
            if taken < batch.count:
                group.returned[0] = batch.part(taken, batch.count)
                return
            del group.returned[0]
        super().read_on()

    def _fetch(self, place: Batch) -> None:
        """Read a returned message of which only the offset is known."""
        assert place.stream is not None
        if self._reading:
            return
        self._reading = True

        def fetched(found: dict[int, Batch]) -> None:
            self._reading = False
            if place in self._group.returned:
                at = self._group.returned.index(place)
                self._group.returned[at : at + 1] = found.values()
            self.read_on()

        offsets = range(place.offset, place.offset + place.count)
        self.broker.journal.fetch(place.stream, offsets, fetched, self.asker())

    def take(self, batch: Batch) -> int:
        """Deliver a batch to members with room."""
        return self.broker.groups.deliver_with_room(batch, self._group)

    def caught_up(self) -> None:
        """Let the group take messages as they are routed."""
        self.broker.groups.caught_up(self._group)
