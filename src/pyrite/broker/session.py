"""A session: what the broker knows of one client, connected or not.

Deliveries with QoS 1 and 2 pass through here. In flight are those sent and not yet acknowledged, by message
id; whole batches share one `Flight`, so that a thousand messages cost one object and a few operations that
run at the speed of C (`dict.fromkeys`, `map`). What finds no place in flight waits in a bounded queue.

With a log behind it, a session that is away or slow is a position in the log (`positions`): what is published
meanwhile is not kept for it, but read again when there is room (followers.py). What is in flight to it is
then known by its place in the log too. And of a session that is to outlive the broker's process, every step
of a delivery is written down (deliveries.py), before the client can know of it where that matters (QoS 2).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any

from pyrite.broker import deliveries
from pyrite.broker.access import UNSPECIFIED
from pyrite.broker.deliveries import DONE, RECEIVED, SENT, SENT_ASIDE, SENT_SHARED
from pyrite.broker.fanout import lowest_offsets
from pyrite.broker.latest import Latest
from pyrite.broker.link import Link
from pyrite.broker.message import AbsentBatch, Batch
from pyrite.broker.subscriptions import SharedGroup, Subscription
from pyrite.broker.timers import NO_SLOT, TURN
from pyrite.process.fair import Asker
from pyrite.topics.filters import matches

if TYPE_CHECKING:
    from pyrite.broker.access import Credentials
    from pyrite.broker.accounts import Account
    from pyrite.broker.core import Broker
    from pyrite.broker.followers import CatchUp, Replay
    from pyrite.broker.journal import Stream

logger = logging.getLogger(__name__)

MayRead = Callable[[bytes], bool]
"""Tells whether a client may be sent messages of a topic."""

Queued = tuple[Batch, int, Subscription]
"""A batch that waits, its QoS, and the subscription that asked for it."""

MAX_MESSAGE_ID = 65_535
FREED_AT_ONCE = 1_000
"""Messages of a session that are freed in one go when it ends; if there are more, in turns."""
FIRST_TURN = TURN / 4
"""Seconds of a chore that are done at once: several may begin in one turn of a client."""
CHORE_STEPS = 16
"""Steps of a chore between two looks at the clock."""
FEW_SUBSCRIPTIONS = 8
"""Subscriptions of a session up to which it is faster to try each than to ask the tree."""
SENT_TOGETHER = 32
"""Messages that are sent between two looks at the clock."""
NEVER = 0xFFFF_FFFF
"""The session expiry interval of a session that does not expire."""


class Will:
    """The message a client leaves behind for the case that it vanishes."""

    __slots__ = ("author", "batch", "delay")

    def __init__(self, batch: Batch, delay: int, author: Credentials) -> None:
        self.batch = batch
        self.delay = delay
        self.author = author


class Flight:
    """Consecutive messages of a batch, sent under consecutive ids and not all acknowledged yet."""

    __slots__ = ("batch", "first_id", "left", "qos", "start", "target")

    def __init__(
        self, batch: Batch, start: int, first_id: int, qos: int, target: Subscription | None, left: int
    ) -> None:
        self.batch = batch
        self.start = start
        self.first_id = first_id
        self.qos = qos
        self.target = target
        self.left = left
        """How many of the messages are still in flight; while there are any, the batch takes up memory."""

    def index(self, message_id: int) -> int:
        """Return which message of the batch went out as `message_id`."""
        return self.start + message_id - self.first_id


RELEASED = Flight(Batch(b"", b""), 0, 0, 2, None, 0)
"""Stands in flight for a QoS 2 message that the client has (PUBREC came): only its id is still taken."""


SHARED = Subscription(None, b"", 1)  # type: ignore[arg-type]
"""Stands for a shared subscription, of which it is not known which one it was."""


class WrongAcknowledgement(Exception):
    """A client acknowledged a message in a way that its quality of service does not have."""


def _emptied(container: deque[Any] | dict[Any, Any]) -> Iterator[None]:
    """Free the contents of a container, one in each step."""
    pop = container.popitem if isinstance(container, dict) else container.pop
    while container:
        pop()
        yield


NO_SUBSCRIPTIONS: dict[bytes, Subscription] = {}
"""What all sessions without a subscription share; never added to."""


class Session:
    """One client's subscriptions, unfinished deliveries and queue."""

    __slots__ = (
        "_chores",
        "_inflight",
        "_next_id",
        "_queue",
        "_resend",
        "_resend_after",
        "_sifted",
        "_then",
        "_unsent",
        "account",
        "broker",
        "client_id",
        "expires_at",
        "expiry",
        "follower",
        "has_answers",
        "identity",
        "incoming",
        "inflight_bytes",
        "is_dealt_to",
        "is_pumping",
        "latest",
        "link",
        "noted",
        "positions",
        "pruned_as",
        "queued_bytes",
        "queued_messages",
        "replays",
        "slot",
        "subscriptions",
        "will",
        "will_at",
        "window",
    )

    def __init__(self, broker: Broker, client_id: str) -> None:
        self.broker = broker
        self.client_id = client_id
        self.account: Account | None = None
        """The account that the session is counted for; see `Quotas.own`."""
        self.link: Link | None = None
        self.window = 0
        """How many messages may be in flight to the client that is connected now."""
        self.expiry = 0
        """For how many seconds the session outlives its connection; NEVER for good."""
        self.expires_at: float | None = None
        self.will_at: float | None = None
        self.slot = NO_SLOT
        self.will: Will | None = None
        self.subscriptions = NO_SUBSCRIPTIONS
        """By filter, a shared one's with its $share/group/ before it."""
        self.incoming: set[int] | None = None
        """The ids of QoS 2 messages that came and are not released yet [MQTT-4.3.3-10]."""
        self.inflight_bytes = 0
        """Bytes of the batches that are in flight, in whole or in part."""
        self.queued_messages = 0
        self.queued_bytes = 0
        # Most clients never receive QoS 1 or 2, so what that takes is made when it is needed.
        self._queue: deque[Queued] | None = None
        self._inflight: dict[int, Flight] | None = None
        self._resend: deque[int] | None = None
        self._chores: deque[Iterator[None]] | None = None
        """Work on the queue and on messages in flight, in order. Nothing is sent before it is done."""
        self._resend_after: deque[int] | None = None
        """What `_resend` is again after the chores; until then it is empty, which stops all sending."""
        self._then: Callable[[], object] | None = None
        """Called after the chores."""
        self._sifted: tuple[deque[Queued], deque[Queued]] | None = None
        """While a chore goes through the queue: what stays of it, and what the chore has not come to."""
        self._unsent = 0
        """Messages in flight that are sent when the state is safe."""
        self._next_id = 1
        self.positions: dict[Stream, int] | None = None
        """Streams whose messages the session does not take as they come, and from where on it is to read."""
        self.follower: CatchUp | None = None
        """What reads them for it, while it is connected."""
        self.latest: Latest | None = None
        """What waits for an acknowledgement of a client that wants only the newest message of a topic."""
        self.replays: dict[Replay, None] | None = None
        """What sends subscriptions of the session the past."""
        self.identity: object = None
        """The user, with his groups, that the last connection of the session was let in as."""
        self.pruned_as: object = None
        """The identity, and the version of the rules, that all subscriptions here are allowed to."""
        self.has_answers = False
        """Whether answers to requests were ever sent to it."""
        self.is_dealt_to = False
        """Whether it was ever a member of a shared subscription."""
        self.is_pumping = False
        """Whether the rest of what waits is sent in a later turn."""
        self.noted: bytearray | None = None
        """Steps of deliveries that are not written down yet; None for a session that does not last."""

    @property
    def lasting(self) -> bool:
        """Whether the session outlives the broker's process."""
        return self.noted is not None

    @property
    def has_ended(self) -> bool:
        """Whether the broker has forgotten it; what it had subscribed to may still be in the tree."""
        return self.broker.sessions.get(self.client_id) is not self

    # Sending

    def deliver(self, batch: Batch, target: Subscription) -> None:
        """Give the client a batch that one of its subscriptions asked for."""
        qos = batch.qos if batch.qos < target.qos else target.qos  # [MQTT-3.8.4-8]
        link = self.link
        if qos == 0:
            if link is not None:
                link.forward(batch, target)
            elif target.latest and not self.has_ended:
                self.keep_latest(batch)
            return
        if self.positions is not None and batch.stream in self.positions and not target.aside:
            return  # it will be read from the log
        if batch.mixed and link is not None and not link.takes_as_it_came(batch, target, qos):
            for single in batch.parts():
                self.deliver(single, target)
            return
        self._offer(batch, qos, target)

    def deliver_aside(self, batch: Batch, target: Subscription) -> None:
        """Give the client a retained message, however far it has come in the log."""
        qos = batch.qos if batch.qos < target.qos else target.qos
        if qos:
            self._offer(batch, qos, target)
        elif self.link is not None:
            self.link.forward(batch, target)

    def keep_latest(self, batch: Batch) -> None:
        """Have the newest message of each topic wait for the client's acknowledgement."""
        if self.latest is None:
            self.latest = Latest(self.broker.limits)
        for part in batch.parts():
            self.broker.figures.messages_dropped += self.latest.put(part)

    def _offer(self, batch: Batch, qos: int, target: Subscription) -> None:
        """Send a batch, or as much of it as may be in flight; the rest waits."""
        sent = 0
        if self.link is not None and not self._queue and self._resend is None:
            sent = self._send(batch, qos, target)
        if sent < batch.count:
            self._enqueue(batch.part(sent, batch.count), qos, target)

    def _send(self, batch: Batch, qos: int, target: Subscription) -> int:
        """Send as much of the front of `batch` as may be in flight, and return how many messages went."""
        link = self.link
        assert link is not None
        inflight = self._inflight
        if inflight is None:
            inflight = self._inflight = {}
        if batch.count == 1:
            return self._send_one(link, inflight, batch, qos, target)
        sent = 0
        while sent < batch.count and self._may_send(link, inflight):
            free = self.window - len(inflight) + len(self._resend or ())
            count = min(batch.count - sent, free, max(1, link.room // batch.stride))
            first_id, count = self._free_ids(count)
            flight = Flight(batch, sent, first_id, qos, target, count)
            if not self._transmit(link, flight, count):
                return batch.count  # [MQTT-3.1.2-25]: too large for this client, as if it had been sent
            self.inflight_bytes += len(batch.data)
            inflight.update(dict.fromkeys(range(first_id, first_id + count), flight))
            sent += count
        return sent

    def _send_one(
        self, link: Link, inflight: dict[int, Flight], batch: Batch, qos: int, target: Subscription
    ) -> int:
        """Do the same for a single message, which most clients send: a third of the work."""
        if not self._may_send(link, inflight):
            return 0
        message_id = self._next_id
        while message_id in inflight:
            message_id = message_id % MAX_MESSAGE_ID + 1
        flight = Flight(batch, 0, message_id, qos, target, 1)
        if self._transmit(link, flight, 1):
            inflight[message_id] = flight
            self.inflight_bytes += len(batch.data)
            self._next_id = message_id % MAX_MESSAGE_ID + 1
        return 1  # [MQTT-3.1.2-25]: one too large for this client is as if it had been sent

    def _transmit(self, link: Link, flight: Flight, count: int) -> bool:
        """Send messages that are in flight from here on; False if this client can never take them.

        With QoS 2 it must be known after a crash under which id a message went out, before it does; and what
        comes after it does not overtake it.
        """
        batch, start, target = flight.batch, flight.start, flight.target
        assert target is not None
        if self.noted is None or (batch.stream is None and flight.qos == 1):
            return link.send(batch, start, start + count, target, flight.qos, flight.first_id, False)
        if flight.qos == 1 and not self._unsent:
            sent = link.send(batch, start, start + count, target, 1, flight.first_id, False)
            if sent:
                self._note_sent(flight, count)
            return sent
        if not link.can_take(batch, target, flight.qos):
            return False
        self._note_sent(flight, count)
        self._unsent += 1

        def send() -> None:
            self._unsent -= 1
            if self.link is link:
                link.send(batch, start, start + count, target, flight.qos, flight.first_id, False)

        self.broker.journal.after(send)
        return True

    def _note_sent(self, flight: Flight, count: int) -> None:
        """Write down that messages are in flight, and how far their reader has come with that."""
        target, stream = flight.target, flight.batch.stream
        assert target is not None
        if stream is None:
            self._note(SENT_ASIDE, flight.qos, flight.first_id, count, deliveries.NOWHERE)
            return
        offset = flight.batch.offset + flight.start
        kind = SENT if not target.aside else SENT_ASIDE if target.group is None else SENT_SHARED
        self._note(kind, flight.qos, flight.first_id, count, stream.number, offset)
        if target.group is not None:
            self.broker.journal.save_group(target.group)
        elif target.replay is not None:
            target.replay.sent(stream, offset + count)

    def _note(self, kind: int, qos: int, first_id: int, count: int, stream: int = 0, offset: int = 0) -> None:
        if self.noted is not None:
            self.noted += deliveries.step(kind, qos, first_id, count, stream, offset)
            self.broker.journal.save_deliveries(self)

    def _note_ids(self, kind: int, ids: Sequence[int]) -> None:
        if self.noted is not None:
            self.noted += deliveries.steps(kind, ids)
            self.broker.journal.save_deliveries(self)

    @property
    def capacity(self) -> int:
        """How many messages may be sent to the client right now."""
        link = self.link
        if link is None or self._queue or self._resend is not None:
            return 0
        if self._inflight is None:
            self._inflight = {}
        if not self._may_send(link, self._inflight):
            return 0
        return self.window - len(self._inflight)

    def _may_send(self, link: Link, inflight: dict[int, Flight]) -> bool:
        """Tell whether one more may be in flight: by number, by bytes, and by what waits for the client."""
        if len(inflight) - len(self._resend or ()) >= self.window:
            return False
        if inflight and self.inflight_bytes >= self.broker.limits.max_queued_bytes:
            return False
        if link.room <= 0:
            link.measure()
        return link.room > 0

    def _landed(self, flight: Flight, count: int = 1) -> None:
        """Note that messages of a flight are no longer in it."""
        flight.left -= count
        if flight.left == 0:
            self.inflight_bytes -= len(flight.batch.data)

    def _landed_of(self, found: list[Flight | None], flights: set[Flight]) -> None:
        """Note that messages are no longer in flight, each given by its flight."""
        if len(flights) == 1:
            for flight in flights:
                self._landed(flight, found.count(flight))
            return
        counts: dict[Flight, int] = {}
        for one in found:
            if one is not None:
                counts[one] = counts.get(one, 0) + 1
        for flight, count in counts.items():
            self._landed(flight, count)

    def _free_ids(self, count: int) -> tuple[int, int]:
        """Return the first of up to `count` consecutive ids that are free, and how many they are."""
        inflight = self._inflight
        assert inflight is not None
        first = self._next_id
        count = min(count, MAX_MESSAGE_ID + 1 - first)
        if not inflight.keys().isdisjoint(range(first, first + count)):
            # Some client acknowledges out of order. The window is smaller than the number of ids, so
            # there is a free one.
            while first in inflight:
                first = first % MAX_MESSAGE_ID + 1
            count = 1
        self._next_id = (first + count - 1) % MAX_MESSAGE_ID + 1
        return first, count

    def _enqueue(self, batch: Batch, qos: int, target: Subscription) -> None:
        """Let messages wait for the client, within the bound on what may wait for one session."""
        if self.has_ended:
            return
        broker = self.broker
        limits = broker.limits
        if batch.stream is not None and not target.aside:
            if self.queued_bytes >= limits.max_buffered_bytes or self.link is None:
                self.fall_behind(batch.stream, batch.offset)
                return
            self._append(batch, qos, target)
            return
        free = limits.max_queued_messages - self.queued_messages
        if batch.stride:
            free = min(free, (limits.max_queued_bytes - self.queued_bytes) // batch.stride)
        if free < batch.count:
            broker.figures.messages_dropped += batch.count - max(free, 0)
            if free <= 0:
                return
            batch = batch.part(0, free)
        self._append(batch, qos, target)

    def _append(self, batch: Batch, qos: int, target: Subscription) -> None:
        if self._queue is None:
            self._queue = deque()
        self._queue.append((batch, qos, target))
        self._count_queued(batch, 1)

    def fall_behind(self, stream: Stream, offset: int) -> None:
        """Take a stream's messages from the log, from `offset` on, instead of as they come."""
        if self.positions is None:
            self.positions = {}
        self.positions[stream] = offset
        if self.link is not None:
            self.broker.catch_up(self)

    def _count_queued(self, batch: Batch, sign: int) -> None:
        self.queued_messages += sign * batch.count
        self.queued_bytes += sign * len(batch.data)
        self.broker.figures.messages_stored += sign * batch.count

    def go_on(self) -> None:
        """Send more of what waits, for another turn."""
        self.is_pumping = False
        self.pump()

    def _is_turn_over(self, count: int, until: float) -> bool:
        """Return whether the rest, after `count` messages, is sent in a later turn, which then will come."""
        if count % SENT_TOGETHER or self.broker.clock() <= until:
            return False
        self.is_pumping = True
        self.broker.interrupted(self)
        return True

    def pump(self) -> None:
        """Send what waits, as far as the window and the client's room allow; if it is much, in turns."""
        link = self.link
        if link is None or self.is_pumping:
            return
        until = self.broker.clock() + TURN if self._resend or self._queue else 0.0
        if self._resend:
            self._pump_resend(link, self._resend, until)
        if self._resend is not None:
            return
        queue = self._queue
        count = 0
        while queue:
            count += 1
            if self._is_turn_over(count, until):
                return
            batch, qos, target = queue[0]
            if batch.expires_at is not None and batch.expires_at <= self.broker.now:
                queue.popleft()  # [MQTT-3.3.2-5]
                self._count_queued(batch, -1)
                continue
            if batch.mixed and not link.takes_as_it_came(batch, target, qos):
                queue.popleft()
                queue.extendleft((single, qos, target) for single in reversed(batch.parts()))
                continue
            sent = self._send(batch, qos, target)
            if sent < batch.count:
                if sent:
                    rest = batch.part(sent, batch.count)
                    queue[0] = (rest, qos, target)
                    self._count_queued(batch, -1)
                    self._count_queued(rest, 1)
                return
            queue.popleft()
            self._count_queued(batch, -1)
        if self.follower is not None:
            self.follower.pump()
        for replay in list(self.replays or ()):
            replay.pump()
        if self.broker.groups_behind:
            self._pump_groups()

    def _pump_groups(self) -> None:
        """Let shared subscriptions that had to wait for a member with room know of this one."""
        for subscription in self.subscriptions.values():
            if subscription.group is not None and subscription.group.reader is not None:
                subscription.group.reader.pump()

    def _has_more(self) -> bool:
        """Tell whether anything waits for room in flight."""
        return bool(self._queue or self._resend or self.follower or self.replays or self.broker.groups_behind)

    def _pump_resend(self, link: Link, waiting: deque[int], until: float) -> None:
        inflight = self._inflight
        assert inflight is not None
        count = 0
        while waiting and len(inflight) - len(waiting) < self.window and link.room > 0:
            count += 1
            if self._is_turn_over(count, until):
                return
            message_id = waiting.popleft()
            flight = inflight.get(message_id)
            if flight is RELEASED:
                link.release(message_id)
            elif flight is not None and flight.target is not None:
                index = flight.index(message_id)
                if not link.send(flight.batch, index, index + 1, flight.target, flight.qos, message_id, True):
                    self._landed(flight)
                    del inflight[message_id]
                    self._note(DONE, flight.qos, message_id, 1)
        if not waiting:
            self._resend = None

    # Acknowledgements of the client

    def acknowledge(self, message_ids: Sequence[int]) -> None:
        """Note that the client has these QoS 1 messages."""
        if len(message_ids) == 1 and self._inflight:  # as most clients do: a short way for it
            flight = self._inflight.get(message_ids[0])
            if flight is not None and flight.qos == 1:
                del self._inflight[message_ids[0]]
                self._landed(flight)
                if self.noted is not None:
                    self._note_ids(DONE, message_ids)
                if self._has_more():
                    self.pump()
                return
        self._finish(message_ids, lambda flight: flight.qos == 1, "PUBACK for a message sent with QoS 2")

    def complete(self, message_ids: Sequence[int]) -> None:
        """Note that these QoS 2 deliveries are over."""
        self._finish(message_ids, lambda flight: flight is RELEASED, "PUBCOMP before PUBREC")

    def _finish(self, message_ids: Sequence[int], fits: Callable[[Flight], bool], wrong: str) -> None:
        inflight = self._inflight
        if not inflight:
            return
        found = list(map(inflight.pop, message_ids, repeat(None)))
        flights = {flight for flight in found if flight is not None}
        if not all(map(fits, flights)):
            for message_id, flight in zip(message_ids, found, strict=True):
                if flight is not None and not fits(flight):
                    inflight[message_id] = flight
            raise WrongAcknowledgement(wrong)
        self._landed_of(found, flights)
        if self.noted is not None:
            self._note_ids(DONE, message_ids)
        if self._has_more():
            self.pump()

    def received(self, message_ids: Sequence[int]) -> bool:
        """Note that the client has these QoS 2 messages (PUBREC); False if any of the ids is unknown."""
        inflight = self._inflight or {}
        found = list(map(inflight.get, set(message_ids)))
        flights = {flight for flight in found if flight is not None}
        if None in found:
            return False
        if any(flight.qos != 2 for flight in flights):
            raise WrongAcknowledgement("PUBREC for a message sent with QoS 1")
        self._landed_of(found, flights)
        inflight.update(dict.fromkeys(message_ids, RELEASED))
        if self.noted is not None:
            self._note_ids(RECEIVED, message_ids)
        return True

    def refuse(self, message_id: int) -> None:
        """Note that the client will not have this message (PUBACK or PUBREC with a failure)."""
        flight = self._inflight.pop(message_id, None) if self._inflight else None
        if flight is not None:
            self._landed(flight)
            self._note(DONE, flight.qos, message_id, 1)
        self.pump()

    # Chores

    def _do(self, chore: Iterator[None]) -> None:
        """Work on what waits for the client or is in flight: at once, or in turns if it takes long."""
        if self._chores is not None:
            self._chores.append(chore)
            return
        self._chores = deque((chore,))
        self._resend_after, self._resend = self._resend, deque()
        self._work(self.broker.clock() + FIRST_TURN)

    def _work(self, until: float) -> None:
        """Go on with the chores until a time; if they are not done then, in another turn."""
        chores = self._chores
        assert chores is not None
        try:
            while chores:
                chore = chores.popleft()
                if sum(1 for _ in islice(chore, CHORE_STEPS)) == CHORE_STEPS:
                    chores.appendleft(chore)
                if chores and self.broker.clock() > until:
                    return
        except BaseException:
            self._then = None
            raise
        finally:
            if chores:
                self.broker.soon(self._work_on)
            else:
                self._chores = None
                self._resend, self._resend_after = self._resend_after, None
        then, self._then = self._then, None
        if then is not None:
            then()
        elif self.link is not None:
            self.pump()

    def _work_on(self) -> None:
        try:
            self._work(self.broker.clock() + TURN)
        except Exception:  # an access plug-in may do anything; nothing is sent unasked, nor forgotten
            logger.exception("internal error: what waits for %r was not worked on", self.client_id[:200])
            if self.link is not None:
                self.link.ended(UNSPECIFIED)

    def _after_chores(self, call: Callable[[], object]) -> None:
        """Have something called when no chores are left, if the client is still connected then."""
        if self._chores is None:
            call()
        else:
            self._then = call

    def _sift(self, keep: Callable[[Batch, int, Subscription], Iterable[Queued]]) -> Iterator[None]:
        """Replace each entry of the queue by what `keep` returns for it, an entry a step.

        The order stays, and what is queued meanwhile comes last.
        """
        if not self._queue:
            return
        waiting, self._queue = self._queue, None
        kept: deque[Queued] = deque()
        self._sifted = kept, waiting
        try:
            while waiting:
                kept.extend(keep(*waiting[0]))
                waiting.popleft()
                yield
        finally:
            kept.extend(waiting)
            kept.extend(self._queue or ())
            self._queue = kept or None
            self._sifted = None

    # Coming and going

    def attach(self, link: Link, window: int) -> None:
        """Connect the session to a link: from here on, what arrives is sent."""
        self.broker.fan_outs.settle(self)
        self.link = link
        self.window = window
        self.expires_at = None
        self.will_at = None
        if self.is_dealt_to:
            for subscription in self.subscriptions.values():
                if subscription.group is not None:
                    subscription.group.came(subscription)

    def add_replay(self, replay: Replay) -> None:
        """Note what sends a subscription the past."""
        if self.replays is None:
            self.replays = {}
        self.replays[replay] = None

    def remove_replay(self, replay: Replay | None) -> None:
        """Forget what sent a subscription the past."""
        if self.replays is not None and replay is not None:
            self.replays.pop(replay, None)
            self.replays = self.replays or None

    def due(self) -> None:
        """Do what a session that is away does with time: send its will, expire."""
        self.broker.session_due(self)

    def resume(self, may_read: MayRead | None = None) -> None:
        """Send again what was unfinished, in its first order [MQTT-4.4.0-1], then what waited.

        `may_read` says for which topics; those of others are given up. What is still to be done since the
        last connection ended comes first.
        """
        self._after_chores(partial(self._resume, may_read))

    def _resume(self, may_read: MayRead | None) -> None:
        if self._inflight:
            self._resend = deque()  # until it is all here, nothing else is sent
            self._fetch_absent(may_read)
        else:
            self._resumed(may_read)

    def _resumed(self, may_read: MayRead | None) -> None:
        if may_read is None:
            self._resend_all()
            return
        self._then = self._resend_all  # before the chore: nothing may be sent between the two
        self._do(self._withhold_sent(may_read))

    def _resend_all(self) -> None:
        self.pruned_as = self.broker.rights_of(self)
        self._resend = deque(self._inflight) if self._inflight else None
        self.pump()
        if self.positions is not None:
            self.broker.catch_up(self)
        self.broker.go_on_replaying(self)

    def withhold(self, may_read: MayRead) -> None:
        """Forget what waits for the client on topics that it may not read."""

        def keep(batch: Batch, qos: int, target: Subscription) -> list[Queued]:
            parts = batch.parts()
            kept = [part for part in parts if may_read(part.topic)]
            if len(kept) < len(parts):
                self.broker.figures.messages_dropped += batch.count - sum(part.count for part in kept)
            self._count_queued(batch, -1)
            for part in kept:
                self._count_queued(part, 1)
            return [(part, qos, target) for part in kept]

        self._do(self._sift(keep))

    def withhold_answers(self) -> None:
        """Forget the answers to requests of the user before, as they are not for this one.

        Messages that were fetched and are not acknowledged are given out again, to whoever may fetch them.
        """
        if self.has_answers:
            self.has_answers = False
            self._do(self._forget_answers())

    def _forget_answers(self) -> Iterator[None]:
        def keep(batch: Batch, qos: int, target: Subscription) -> tuple[Queued, ...]:
            if not target.is_answer:
                return ((batch, qos, target),)
            self._count_queued(batch, -1)
            self.broker.figures.messages_dropped += batch.count
            return ()

        yield from self._sift(keep)
        for message_id, flight in self._each_in_flight():
            yield
            if flight.target is not None and flight.target.is_answer:
                self._landed(flight)
                self._give_up(message_id, flight)

    def _withhold_sent(self, may_read: MayRead) -> Iterator[None]:
        """Do the same as `withhold` for what was sent, and would be sent again."""
        for message_id, flight in self._each_in_flight():
            yield
            index = flight.index(message_id)
            if not may_read(flight.batch.part(index, index + 1).topic):
                self._landed(flight)
                self._give_up(message_id, flight)

    def _each_in_flight(self) -> Iterator[tuple[int, Flight]]:
        """Yield what is in flight and not released; it may change meanwhile."""
        for message_id, flight in list((self._inflight or {}).items()):
            if flight is not RELEASED and self._inflight and self._inflight.get(message_id) is flight:
                yield message_id, flight

    def _give_up(self, message_id: int, flight: Flight) -> None:
        """Send a message no more that was sent."""
        assert self._inflight is not None
        self.broker.figures.messages_dropped += 1
        if flight.qos == 2:  # the client may have it half received: its id is not free before the end
            self._inflight[message_id] = RELEASED
            self._note_ids(RECEIVED, (message_id,))
        else:
            del self._inflight[message_id]
            self._note(DONE, flight.qos, message_id, 1)

    def _fetch_absent(self, may_read: MayRead | None) -> None:
        """Read what is in flight from the log, as far as only its place there is known."""
        link, inflight = self.link, self._inflight
        assert inflight is not None
        places: dict[Stream, list[int]] = {}
        for message_id, flight in inflight.items():
            if flight.batch.absent:
                assert flight.batch.stream is not None
                offset = flight.batch.offset + flight.index(message_id)
                places.setdefault(flight.batch.stream, []).append(offset)
        left = len(places)
        if not left:
            self._resumed(may_read)
            return
        found: dict[tuple[Stream, int], Batch] = {}

        def fetched(stream: Stream, batches: dict[int, Batch]) -> None:
            nonlocal left
            left -= 1
            found.update({(stream, offset): batch for offset, batch in batches.items()})
            if left == 0 and self.link is link and self._inflight is inflight:
                self._put_in_place(inflight, found)
                try:
                    self._resumed(may_read)
                except Exception:  # a plug-in may do anything; nothing is sent unasked, nor forgotten
                    logger.exception("internal error in the access plug-in")
                    assert link is not None
                    link.ended(UNSPECIFIED)

        for stream, offsets in places.items():
            self.broker.journal.fetch(stream, offsets, partial(fetched, stream), self.asker)

    def _put_in_place(self, inflight: dict[int, Flight], found: dict[tuple[Stream, int], Batch]) -> None:
        for message_id, flight in list(inflight.items()):
            if not flight.batch.absent:
                continue
            assert flight.batch.stream is not None
            batch = found.get((flight.batch.stream, flight.batch.offset + flight.index(message_id)))
            if batch is None:  # the log does not keep it any longer
                self._give_up(message_id, flight)
                continue
            target = self._shared_target(batch) if flight.target is SHARED else flight.target
            target = target or self.target_for(batch) or self._earlier_target(batch, flight.qos)
            inflight[message_id] = Flight(batch, 0, message_id, flight.qos, target, 1)
            self.inflight_bytes += len(batch.data)

    def _earlier_target(self, batch: Batch, qos: int) -> Subscription:
        """Return for what a message went out that is older than the subscription: it was a retained one."""
        target = Subscription(self, batch.topic, qos, retain_as_published=True)
        target.aside = True
        for one in self._asking_for(batch.topic):
            if one.group is None:
                target.identifiers = one.identifiers
                break
        return target

    def asks_for(self, topic: bytes) -> bool:
        """Tell whether any of the session's subscriptions matches a topic."""
        replayed = (replay.subscription for replay in self.replays or ())
        return any(self._asking_for(topic)) or any(matches(one.topic_filter, topic) for one in replayed)

    def _asking_for(self, topic: bytes) -> Iterable[Subscription]:
        """Return the session's subscriptions whose filters match a topic.

        If there are many, the tree finds them; what is being sent the past is not in it.
        """
        if len(self.subscriptions) <= FEW_SUBSCRIPTIONS:
            return [one for one in self.subscriptions.values() if matches(one.topic_filter, topic)]
        return self.broker.subscriptions.of(self, topic)

    def _shared_target(self, batch: Batch) -> Subscription | None:
        """Return the shared subscription for which the session may have been dealt a batch."""
        for one in self._asking_for(batch.topic):
            if one.group is not None:
                return one
        return None

    def target_for(self, batch: Batch) -> Subscription | None:
        """Return what of the session's subscriptions asks for a batch from the log."""
        target: Subscription | None = None
        for subscription in self._asking_for(batch.topic):
            if subscription.group is None and subscription.replay is None and subscription.wants(batch):
                target = subscription if target is None else target.merged_with(subscription)
        if target is not None and target.no_local and batch.origin == self.client_id:
            return target.own  # [MQTT-3.8.3-3]
        return target

    def take_from_log(self, batch: Batch) -> None:
        """Take a batch that the session missed, as far as its subscriptions ask for it."""
        target = self.target_for(batch)
        if target is not None:
            qos = batch.qos if batch.qos < target.qos else target.qos
            if qos:  # QoS 0 is not sent to who was away
                self.offer_from_log(batch, qos, target)

    def offer_from_log(self, batch: Batch, qos: int, target: Subscription) -> None:
        """Send a batch from the log, or have it wait: there was room for it when it was read."""
        sent = 0
        if self.link is not None and not self._queue and self._resend is None:
            sent = self._send(batch, qos, target)
        if sent < batch.count:
            self._append(batch.part(sent, batch.count), qos, target)

    @property
    def asker(self) -> Asker:
        """For whom the log is read for this session."""
        return Asker(client=self.client_id) if self.link is None else self.link.credentials.asker

    @property
    def has_room(self) -> bool:
        """Whether more may be read from the log for this session."""
        return (
            self.link is not None
            and self._resend is None
            and (not self._queue or self.queued_bytes < self.broker.limits.max_buffered_bytes // 2)
        )

    def detach(self, ends: bool = False) -> None:
        """Forget the link; what was shared with others and not acknowledged goes to one of them.

        What the log has is forgotten too: its place there will do.
        """
        self.link = None
        self.broker.fan_outs.settle(self)
        self._then = None
        if self._chores is None:
            self._resend = None
        else:
            self._resend_after = None
        if self.is_dealt_to and not ends:  # a session that ends leaves its groups anyway
            for subscription in self.subscriptions.values():
                if subscription.group is not None:
                    subscription.group.went(subscription)
        if self.follower is not None:
            self.follower.stop()
            self.follower = None
        for replay in self.replays or ():
            replay.stop()
        if self.is_dealt_to and not ends:
            self._do(self._hand_over(ends=False))
        self.park()

    def park(self) -> None:
        """Keep of what waits and what is in flight only its place in the log, as far as the log has it."""
        streams = self.broker.journal.streams
        if not streams or self.expiry == 0:
            return
        positions = self.positions = self.positions or {}
        for stream in streams:  # from here on, what is published is read from the log
            positions.setdefault(stream, stream.routed)
        self._do(self._park(positions))

    def _park(self, positions: dict[Stream, int]) -> Iterator[None]:
        def keep(batch: Batch, qos: int, target: Subscription) -> tuple[Queued, ...]:
            stream = batch.stream
            if stream is None or (target.aside and target.replay is None):
                return ((batch, qos, target),)
            self._count_queued(batch, -1)
            if target.replay is None:  # else it was not sent, so it will be read again
                positions[stream] = min(batch.offset, positions.get(stream, batch.offset))
            return ()

        yield from self._sift(keep)
        for flight in dict.fromkeys((self._inflight or {}).values()):
            yield
            batch = flight.batch
            if batch.stream is not None and not batch.absent and flight.left:
                self.inflight_bytes -= len(batch.data)
                flight.batch = AbsentBatch(batch.stream, batch.offset, batch.count)
        for stream, position in positions.items():
            self._note(deliveries.POSITION, 0, 0, 0, stream.number, position)

    def snapshot(self) -> bytes:
        """Return steps that lead to the present state of deliveries, from nothing."""
        positions = lowest_offsets(one for one in self.broker.fan_outs.owed_to(self) if one.qos)
        positions.update(self.positions or {})
        if self.follower is not None:
            positions.update(self.follower.reached_positions())
        for batch, _, target in chain(*(self._sifted or ()), self._queue or ()):
            if batch.stream is not None and not target.aside:
                before = positions.get(batch.stream, batch.offset)
                positions[batch.stream] = min(before, batch.offset)
        steps = bytearray()
        for stream in self.broker.journal.streams:
            position = positions.get(stream, stream.routed)
            steps += deliveries.step(deliveries.POSITION, 0, 0, 0, stream.number, position)
        released: list[int] = []
        for message_id, flight in (self._inflight or {}).items():
            if flight is RELEASED:
                released.append(message_id)
                continue
            asked = flight.target
            shared = asked is SHARED or (asked is not None and asked.group is not None)
            kind = SENT_SHARED if shared else SENT_ASIDE
            lies_in = flight.batch.stream
            if lies_in is not None:
                offset = flight.batch.offset + flight.index(message_id)
                steps += deliveries.step(kind, flight.qos, message_id, 1, lies_in.number, offset)
            elif flight.qos == 2:
                steps += deliveries.step(kind, 2, message_id, 1, deliveries.NOWHERE, 0)
        return bytes(steps + deliveries.steps(RECEIVED, released))

    def restore(
        self, positions: dict[Stream, int], flights: dict[int, tuple[AbsentBatch, int, bool] | None]
    ) -> None:
        """Take up the state of deliveries that a broker before this one left.

        By id the place of a message, its QoS, and whether it was dealt to a shared subscription; None if the
        client has it.
        """
        self.positions = positions
        self._inflight = {
            message_id: RELEASED
            if sent is None
            else Flight(sent[0], 0, message_id, sent[1], SHARED if sent[2] else None, 1)
            for message_id, sent in flights.items()
        }
        self.noted = bytearray()

    def leave_to(self, groups: list[SharedGroup]) -> None:
        """Leave what was dealt to the session, in the life of a broker before this one, to its groups."""
        flights = (self._inflight or {}).values()
        places = [flight.batch for flight in flights if flight.target is SHARED and flight.qos == 1]
        if places:
            self.broker.give_back_to_one_of(places, groups)

    def take_share(self, batch: Batch, target: Subscription) -> int:
        """Send what of a batch can be sent now, for a shared subscription; return how many messages."""
        qos = batch.qos if batch.qos < target.qos else target.qos
        link = self.link
        if link is None or (qos and not self.capacity):
            return 0
        if qos == 0:
            link.forward(batch, target)
            return batch.count
        if not batch.mixed or link.takes_as_it_came(batch, target, qos):
            return self._send(batch, qos, target)
        taken = 0
        for single in batch.parts():
            if not self._send(single, qos, target):
                break
            taken += 1
        return taken

    def _hand_over(self, ends: bool) -> Iterator[None]:
        """Give other members of the group what this one was dealt and has not acknowledged.

        A QoS 2 message that was sent stays: no one else may have it [MQTT-4.8.2-5].
        """
        for message_id, flight in self._each_in_flight():
            yield
            part = self._taken_back(message_id, flight, ends)
            if part is not None:
                self._leave_to_others(part, flight.target)

        def keep(batch: Batch, qos: int, target: Subscription) -> tuple[Queued, ...]:
            expired = batch.expires_at is not None and batch.expires_at <= self.broker.now
            if not expired and not self._others(target, ends):
                return ((batch, qos, target),)
            self._count_queued(batch, -1)
            if not expired:
                self._leave_to_others(batch, target)
            return ()

        yield from self._sift(keep)

    def _taken_back(self, message_id: int, flight: Flight, ends: bool) -> Batch | None:
        """Take a message out of flight that is for another member of its group now; None if it is not."""
        target, expires_at = flight.target, flight.batch.expires_at
        if expires_at is not None and expires_at <= self.broker.now:
            return None  # it is too late to send it to another [MQTT-3.3.2-5]
        if target is None or flight.qos != 1 or not self._others(target, ends):
            return None
        index = flight.index(message_id)
        part = flight.batch.part(index, index + 1)
        if not flight.batch.absent:
            self._landed(flight)
        assert self._inflight is not None
        del self._inflight[message_id]
        self._note(DONE, 1, message_id, 1)
        return part

    def _leave_to_others(self, batch: Batch, target: Subscription | None) -> None:
        assert target is not None
        assert target.group is not None
        if batch.stream is None:
            self.broker.deal(batch, target.group, self)
        else:
            self.broker.give_back(batch, target.group)

    def end(self) -> None:
        """Leave what was dealt to the session to the others of its groups, and forget the rest.

        What the log has is theirs at once: the session's own note of it is about to be removed. They are
        told of it later.
        """
        self._then = None
        groups: dict[SharedGroup, None] = {}
        if self.is_dealt_to:
            for message_id, flight in self._each_in_flight():
                if flight.batch.stream is None or flight.target is None:
                    continue
                part = self._taken_back(message_id, flight, ends=True)
                if part is not None:
                    assert flight.target.group is not None
                    flight.target.group.returned.append(part)
                    groups[flight.target.group] = None
            for group in groups:
                self.broker.journal.save_group(group)
        self.noted = None
        self._do(self._end(groups))

    def _end(self, groups: Iterable[SharedGroup]) -> Iterator[None]:
        for group in groups:
            yield
            if group.members:
                self.broker.fall_behind(group)
        if self.is_dealt_to:
            yield from self._hand_over(ends=True)
        self.clear()

    def _others(self, target: Subscription, ends: bool) -> bool:
        """Tell whether there is another member of the target's group; connected, unless this one `ends`."""
        if target.group is None:
            return False
        return target.group.has_others(self, connected=not ends)

    def clear(self) -> None:
        """Forget every unfinished delivery; no chore is at work on them."""
        self.broker.figures.messages_stored -= self.queued_messages
        self.queued_messages = self.queued_bytes = 0
        if self._queue is not None and len(self._queue) > FREED_AT_ONCE:
            self.broker.free(_emptied(self._queue))
        if self._inflight is not None and len(self._inflight) > FREED_AT_ONCE:
            self.broker.free(_emptied(self._inflight))
        if self.latest is not None and len(self.latest.values) > FREED_AT_ONCE:
            self.broker.free(_emptied(self.latest.values))
        self.latest = None
        self._queue = None
        self._inflight = None
        self.inflight_bytes = 0
        self.incoming = None
        self.positions = None

    @property
    def inflight_ids(self) -> Collection[int]:
        """The ids of messages that are sent and not finished."""
        return self._inflight.keys() if self._inflight else ()

    @property
    def inflight_messages(self) -> int:
        """How many messages are sent and not finished."""
        return len(self._inflight) if self._inflight else 0
