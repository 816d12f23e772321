"""Those who read the log: from a position, through filters, until they have caught up with what comes in.

A session that was away or is slow, a subscription that asked for the past, a shared subscription that no one
had room for: to each the log is read a piece at a time, as there is room; no more than a piece is in memory.
They have caught up when they have been given everything that was routed; the next message to be routed is
theirs as it comes. As all this happens in one thread, nothing can come in between.
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


ROUNDS = 8
TAKEN_TOGETHER = 16
"""Batches that are taken between two looks at the clock."""
LITTLE = 1_000
"""Messages that may be read in the broker's own thread, after so many rounds of reading."""
A_MOMENT = 0.1
"""Seconds after which it is looked again whether there is room."""
OVERHEAD = 64
"""More bytes than a packet has besides topic and payload, mostly."""


class Follower:
    """Reads streams from positions on, and gives what is found to someone who may have no room at times."""

    all_at_once = False
    """Whether a stream that was caught up with must be read on until all are."""

    def __init__(self, broker: Broker, positions: dict[Stream, int]) -> None:
        self.broker = broker
        self.positions = positions
        """From where on each stream is still to be read; those caught up with are not in it."""
        self._waiting: deque[Batch] = deque()
        """What was read and not yet taken."""
        self._reading = False
        self._stopped = False
        self._pumping = False
        self._will_pump = False
        """Whether another turn comes for what was read."""
        self._rounds = 0

    def stop(self) -> None:
        """Read no more; what is being read now is for no one."""
        self._stopped = True
        self.positions.update(self.reached_positions())
        self._waiting.clear()

    def reached_positions(self) -> dict[Stream, int]:
        """Return up to where what was read has been taken."""
        reached = dict(self.positions)
        for batch in self._waiting:
            if batch.stream is not None:
                reached[batch.stream] = min(batch.offset, reached.get(batch.stream, batch.offset))
        return reached

    def pump(self) -> None:
        """Go on reading, if there is room and nothing is being read."""
        if self._pumping:
            return
        self._pumping = True
        clock = self.broker.clock
        until, count = clock() + TURN if self._waiting else 0.0, 0
        try:
            while not self._stopped and not self._reading and self.has_room():
                if self._waiting:
                    count += 1
                    if count % TAKEN_TOGETHER == 0 and clock() > until:
                        self._pump_later()
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
            self._pumping = False

    def _pump_later(self) -> None:
        """Go on in another turn: what was read takes longer than one."""
        if not self._will_pump:
            self._will_pump = True
            self.broker.turns.soon(self._pump_again)

    def _pump_again(self) -> None:
        self._will_pump = False
        self.pump()

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
        """Return a stream of which there is more to read, and from where on; the others are live now."""
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
                self.pump()

        # Of several busy streams one would always be a little behind, were the last of it not read at once.
        self._rounds += 1
        last = self.all_at_once and self._rounds > ROUNDS and stream.routed - position < LITTLE
        self.broker.journal.read(
            stream, position, stream.routed, self.wanted(), answer, self.asker(), at_once=last
        )

    # What kinds of followers differ in

    def settle(self) -> None:
        """Have what was routed so far pass by those for whom the log is read: they have read it there."""

    def wanted(self) -> Wanted:
        """Return which messages to look for."""
        raise NotImplementedError

    def asker(self) -> Asker:
        """Return for whom the log is read."""
        raise NotImplementedError

    def has_room(self) -> bool:
        """Tell whether more can be taken."""
        raise NotImplementedError

    def take(self, batch: Batch) -> int:
        """Take a batch, and return how many of its messages were taken."""
        raise NotImplementedError

    def may_go_live(self) -> bool:
        """Tell whether what comes in can be taken, as all has been read; else `pump` is called again."""
        return True

    def caught_up(self) -> None:
        """Go on with what comes in."""
        raise NotImplementedError


class CatchUp(Follower):
    """Sends a session what it missed while it was away, or too slow. Its positions are the session's."""

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
        """Have what was routed so far pass by the session."""
        self.broker.fan_outs.settle(self._session)

    def has_room(self) -> bool:
        """Tell whether the session can take more."""
        return self._session.has_room

    def stop(self) -> None:
        """Read no more."""
        super().stop()
        self.broker.figures.sessions_behind -= 1

    def take(self, batch: Batch) -> int:
        """Send a batch to the session, or have it wait there."""
        self._session.deliver_missed(batch)
        return batch.count

    def caught_up(self) -> None:
        """Have the session take messages as they come."""
        self.broker.figures.sessions_behind -= 1
        self._session.positions = None
        self._session.follower = None


class Replay(Follower):
    """Sends a subscription the past, before it takes part in what comes in."""

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
        """Up to where a stream must have been routed first: there is something in it that was not sent."""
        self.key = key
        self.subscription = subscription
        self._seen = seen or {}
        """Offsets below which QoS 0 messages were sent already, before the subscription fell behind."""
        self.reached = dict(positions)
        """Up to where messages have been sent: what is saved."""
        subscription.aside = True
        subscription.replay = self

    def wanted(self) -> Wanted:
        """Return the subscription's filter."""
        return Wanted([self.subscription.topic_filter])

    def asker(self) -> Asker:
        """Return the subscription's client."""
        return self.subscription.session.asker

    def has_room(self) -> bool:
        """Tell whether the session can take more, and the client's connection too.

        Nothing may wait in the session when the subscription goes live: it would not be known to be unsent.
        """
        session = self.subscription.session
        link = session.link
        if link is None or not link.is_roomy or not session.has_room or session.queue.messages:
            return False
        return not self._waiting or self._fits(self._waiting[0].part(0, 1))

    def _fits(self, batch: Batch) -> bool:
        """Tell whether the client's connection takes messages now; one that waits for nothing takes any."""
        link = self.subscription.session.link
        if link is None:
            return False
        size = batch.count * (batch.stride + OVERHEAD + len(batch.topic))
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
        count = min(batch.count, max(1, session.link.room // (batch.stride + OVERHEAD + len(batch.topic))))
        session.link.forward(batch.part(0, count), subscription)
        if not session.queue.messages:
            self.reached[stream] = batch.offset + count
        return count

    def sent(self, stream: Stream, offset: int) -> None:
        """Note how far the client has been sent messages, for the case of a crash."""
        self.reached[stream] = offset
        self.broker.journal.state.save_subscription(self.subscription.session, self.key, self.subscription)

    def again(self) -> Replay:
        """Return what goes on where this one was stopped, when its client is back."""
        return Replay(self.broker, self.key, self.subscription, dict(self.reached), self._seen, self._until)

    def succeeded_by(self, subscription: Subscription) -> Replay:
        """Return what goes on for the subscription that comes in place of this one's.

        What this one has taken is still sent by the session, and counts for the successor.
        """
        successor = Replay(self.broker, self.key, subscription, dict(self.positions), self._seen, self._until)
        successor.reached = self.reached
        self.subscription.replay = successor
        return successor

    def _unrouted(self) -> list[Batch]:
        """Return what is on its way into the log, was given to others already, and is not to be left out."""
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
        """Tell whether there is room for what is on its way into the log; else it is read from there."""
        link = self.subscription.session.link
        waits = self._until is not None and self._until[0].routed < self._until[1]
        size = sum(one.count * (one.stride + OVERHEAD + len(one.topic)) for one in self._unrouted())
        if not waits and link is not None and (not size or size <= link.room):
            return True
        self.broker.timers.set(self, self.broker.now + A_MOMENT)
        return False

    def due(self) -> None:
        """Look again."""
        self.pump()

    def stop(self) -> None:
        """Read no more."""
        super().stop()
        self.broker.timers.cancel(self)

    def caught_up(self) -> None:
        """Send what is on its way into the log and was routed already, and take part from now on."""
        link = self.subscription.session.link
        for part in self._unrouted():
            if link is not None:
                link.forward(part, self.subscription)
        self.broker.timers.cancel(self)
        self.broker.following.go_live(self.key, self.subscription)


class GroupReader(Follower):
    """Deals the members of a shared subscription what none of them had room for, or was there for."""

    def __init__(self, broker: Broker, group: SharedGroup) -> None:
        super().__init__(broker, group.positions)
        self._group = group

    def wanted(self) -> Wanted:
        """Return the group's filter."""
        return Wanted([self._group.topic_filter], least_qos=1)

    def asker(self) -> Asker:
        """Return the user of a member: whoever is in a group has its messages read for all of it."""
        member = next(iter(self._group.members), None)
        user = "" if member is None else member.session.asker.user
        return Asker(user, self._group.topic_filter.decode("utf-8", "replace"))

    def settle(self) -> None:
        """Have what was routed so far pass by the group."""
        self.broker.fan_outs.settle_group(self._group)

    def has_room(self) -> bool:
        """Tell whether any member can take more."""
        return any(member.session.capacity for member in self._group.members)

    def pump(self) -> None:
        """Deal what came back first, then what is in the log."""
        group = self._group
        clock = self.broker.clock
        until, count = clock() + TURN if group.returned else 0.0, 0
        while group.returned and self.has_room():
            count += 1
            if count % TAKEN_TOGETHER == 0 and clock() > until:
                self._pump_later()
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
        super().pump()

    def _fetch(self, place: Batch) -> None:
        """Read what came back as a mere place in the log."""
        assert place.stream is not None
        if self._reading:
            return
        self._reading = True

        def fetched(found: dict[int, Batch]) -> None:
            self._reading = False
            if place in self._group.returned:
                at = self._group.returned.index(place)
                self._group.returned[at : at + 1] = found.values()
            self.pump()

        offsets = range(place.offset, place.offset + place.count)
        self.broker.journal.fetch(place.stream, offsets, fetched, self.asker())

    def take(self, batch: Batch) -> int:
        """Deal a batch to the members that have room."""
        return self.broker.groups.deliver_with_room(batch, self._group)

    def caught_up(self) -> None:
        """Have the group take messages as they are routed."""
        self.broker.groups.caught_up(self._group)
