"""Fan-out: a batch for many receivers is delivered in slices, between which other clients have their turns.

A batch for few receivers is delivered at once. A larger fan-out joins a queue, and each round of the event
loop works on it for a turn. For everything else in the broker the batch counts as delivered from the moment
it is queued: acknowledgements, retained messages and `Stream.routed` do not wait. Two rules make that true:

- No message overtakes another. Before a receiver is given a batch, it is given what older fan-outs owe it. So
  a batch for few receivers need not wait for the queue.
- Before a receiver changes, it is given what it is owed (`settle`): when its client comes or goes, when it
  subscribes or unsubscribes, when it has caught up with the log. What is written down of how far a receiver
  has come leaves out what it is owed (`owed_to`).

The owed work is bounded. While there is too much of it, publishers to many receivers wait, in the order in
which they came. Their messages in the journal count, too.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from itertools import islice
from operator import length_hint
from typing import TYPE_CHECKING

from pyrite.broker.targets import target_for
from pyrite.broker.timers import TURN

if TYPE_CHECKING:
    from pyrite.broker.core import Broker
    from pyrite.broker.journal import Done, Fault, Stream
    from pyrite.broker.message import Batch
    from pyrite.broker.routes import Route
    from pyrite.broker.session import Session
    from pyrite.broker.shared_group import SharedGroup
    from pyrite.broker.subscriptions import Subscription
    from pyrite.broker.turns import Turn

logger = logging.getLogger(__name__)

# Costs are in units of 0.1 microseconds.
DELIVERY = 20
"""Cost of a delivery, besides that of its messages."""
SINGLE = 20
"""Cost of a message that may have to be delivered by itself; that of other messages is 1."""
IDENTIFIERS_PER_COST = 4
"""Subscription identifiers of a delivery that add 1 to its cost."""
BYTES_PER_COST = 8 * 1024
"""Bytes of a batch that add 1 to the cost of a delivery: each receiver may be sent a copy."""
MAX_DIRECT_COST = 1_000
"""Cost up to which a batch does not join the queue."""
MIN_CHARGED_COST = 500
"""Cost from which a batch counts as owed while it is in the journal."""
MAX_OWED = 160_000
"""Owed cost above which publishers to many receivers wait."""
COST_PER_CLOCK = 500
"""Cost of the deliveries between two looks at the clock."""
FIRST_SLICE_SECONDS = TURN / 4
"""Seconds of work on a batch at once when it is published: a turn may publish several."""
MIN_FILTERED_TARGETS = 16
"""Receivers above which it pays to skip those that are not connected."""
MAX_DIRTY = 256
"""Connections with unsent output above which output is sent before more is delivered."""


def cost_of(batch: Batch, route: Route) -> int:
    """Return the cost of delivering a batch to one receiver on a route."""
    message = SINGLE if batch.mixed or route.groups else 1
    cost = DELIVERY + batch.count * message + len(batch.data) // BYTES_PER_COST
    if route.identifiers:
        cost += (batch.count if batch.mixed else 1) * route.identifiers // IDENTIFIERS_PER_COST
    return cost


class Present:
    """The targets of a route that are connected, and those that keep the latest value."""

    __slots__ = ("as_of", "targets")

    def __init__(self, as_of: int) -> None:
        self.as_of = as_of
        self.targets: list[Subscription] = []

    def includes(self, target: Subscription) -> bool:
        """Return whether a target is among them; note it down if so."""
        if target.session.link is None and not target.latest:
            return False
        self.targets.append(target)
        return True


class FanOut:
    """The delivery of one batch: first to the subscribers on its route, then to the shared groups."""

    __slots__ = ("ahead", "batch", "cost", "groups", "present", "route", "targets", "targets_left")

    def __init__(
        self,
        batch: Batch,
        route: Route,
        targets: tuple[Subscription, ...],
        cost: int,
        present: Present | None,
    ) -> None:
        self.batch = batch
        self.present = present
        """Finds the targets that are connected on the way; None if they are known, or all get the batch."""
        self.route = route
        self.targets = targets
        """The route's targets that get the batch, in the same order."""
        self.targets_left = iter(targets)
        self.groups = iter(route.groups)
        self.ahead: set[Session | SharedGroup] = set()
        """Receivers that got the batch out of turn."""
        self.cost = cost
        """The cost of one delivery."""

    @property
    def cost_left(self) -> int:
        """The cost of the deliveries that are left."""
        return self.cost * (length_hint(self.targets_left) + length_hint(self.groups))

    def owes(self, session: Session) -> Subscription | None:
        """Return the subscription for which the batch is still owed to a session."""
        places = self.route.places
        place = places.get(session)
        if place is None or session in self.ahead:
            return None
        given = len(self.targets) - length_hint(self.targets_left)
        if given and place <= places[self.targets[given - 1].session]:
            return None
        return self.route.targets[place]

    def owes_group(self, group: SharedGroup) -> bool:
        """Return whether the batch is still owed to a shared group."""
        place = self.route.places.get(group)
        if place is None or group in self.ahead:
            return False
        return place >= len(self.route.groups) - length_hint(self.groups)


class FanOuts:
    """The queue of fan-outs, and of publishers that wait for it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.queue: deque[FanOut] = deque()
        """The oldest first."""
        self.is_full = False
        """Whether publishers to many receivers have to wait."""
        self._owed = 0
        self._waiting: deque[Turn] = deque()
        self._admits = False
        """Whether a turn for the first waiting publisher is queued."""

    # Deliveries

    def send(self, batch: Batch, route: Route, begins: bool) -> None:
        """Deliver a batch to all receivers on a route, or queue it.

        `begins`: work on it at once if it is the only one.
        """
        targets, present = route.targets, None
        presence = self._broker.sessions.presence
        if len(targets) > MIN_FILTERED_TARGETS and batch.stream is not None:
            known = route.present(presence)  # the others read it from the log
            if known is None:
                present = Present(presence)
            else:
                targets = known
        cost = cost_of(batch, route)
        fan_out = FanOut(batch, route, targets, cost, present)
        if cost * (len(targets) + len(route.groups)) <= MAX_DIRECT_COST:
            if not self.queue:
                self._deliver(fan_out, None)
                return
            if self._deliver_ahead(fan_out):
                return
        is_first = not self.queue
        self.queue.append(fan_out)
        self._owe(fan_out.cost_left)
        if is_first:
            self._broker.wake()
            if begins:
                self.work(self._broker.clock() + FIRST_SLICE_SECONDS)

    def work(self, until: float) -> None:
        """Work on the queue until a time."""
        queue = self.queue
        while queue:
            fan_out = queue[0]
            before = fan_out.cost_left
            is_done = self._deliver(fan_out, until)
            self._owe(fan_out.cost_left - before)
            if not is_done:
                break
            queue.popleft()

    def _deliver(self, fan_out: FanOut, until: float | None) -> bool:
        """Deliver until a time, or to all receivers; return whether it is done. HOT."""
        clock, broker = self._broker.clock, self._broker
        batch, ahead, left = fan_out.batch, fan_out.ahead, fan_out.targets_left
        qos, origin, present = batch.qos, batch.origin, fan_out.present
        step = fan_out.route.receivers if until is None else max(1, COST_PER_CLOCK // fan_out.cost)
        while True:
            try:
                for target in islice(left, step):
                    session = target.session
                    if present is not None and not present.includes(target):
                        continue
                    if ahead and session in ahead:
                        continue
                    if target.no_local and session.client_id == origin:
                        if target.own is not None:
                            session.deliver(batch, target.own)
                    elif qos or session.link is None:
                        session.deliver(batch, target)
                    else:
                        session.link.send_qos0(batch, target)
                if not length_hint(left):
                    for group in islice(fan_out.groups, step):
                        if group not in ahead:
                            broker.groups.deliver(batch, group)
            except Exception:  # a defect with one receiver must not keep the batch from the others
                broker.publishing.log_error(batch)
            if not length_hint(left) and not length_hint(fan_out.groups):
                if present is not None and present.as_of == broker.sessions.presence:
                    fan_out.route.set_present(present.as_of, present.targets)
                return True
            if until is not None and clock() > until:
                return False

    def _deliver_ahead(self, fan_out: FanOut) -> bool:
        """Deliver a small batch before older fan-outs are done; return whether there was time for all of it.

        Each receiver first gets what the older fan-outs owe it.
        """
        broker, batch = self._broker, fan_out.batch
        until = broker.clock() + FIRST_SLICE_SECONDS
        for target in fan_out.targets_left:
            if fan_out.present is not None and not fan_out.present.includes(target):
                continue
            self.settle(target.session)
            self._deliver_one(batch, target)
            if broker.clock() > until:
                return not fan_out.cost_left
        for group in fan_out.groups:
            self.settle_group(group)
            broker.groups.deliver(batch, group)
            if broker.clock() > until:
                return not fan_out.cost_left
        return True

    def _deliver_one(self, batch: Batch, target: Subscription) -> None:
        """Deliver a batch to one subscriber."""
        session = target.session
        if not target.no_local or session.client_id != batch.origin:
            session.deliver(batch, target)
        elif target.own is not None:
            session.deliver(batch, target.own)  # [MQTT-3.8.3-3]

    # Receivers

    def settle(self, session: Session) -> None:
        """Deliver everything owed to a session: it is about to change, or to get a later message."""
        for fan_out in tuple(self.queue):
            target = fan_out.owes(session)
            if target is not None:
                fan_out.ahead.add(session)
                self._deliver_one(fan_out.batch, target)

    def settle_group(self, group: SharedGroup) -> None:
        """Deliver everything owed to a shared group."""
        for fan_out in tuple(self.queue):
            if fan_out.owes_group(group):
                fan_out.ahead.add(group)
                self._broker.groups.deliver(fan_out.batch, group)

    def owed_to(self, session: Session) -> list[Batch]:
        """Return the batches that are owed to a session."""
        return [one.batch for one in self.queue if one.owes(session) is not None]

    def owed_to_group(self, group: SharedGroup) -> list[Batch]:
        """Return the batches that are owed to a shared group."""
        return [one.batch for one in self.queue if one.owes_group(group)]

    def retarget(self, session: Session) -> None:
        """Deliver what is owed to a session for its subscriptions that are still live.

        The others read it from the log.
        """
        for fan_out in tuple(self.queue):
            if fan_out.owes(session) is not None:
                fan_out.ahead.add(session)
                batch = fan_out.batch
                for part in batch.parts() if batch.origins is not None else (batch,):
                    target = target_for(session, part.parts()[0])
                    if target is not None:
                        session.deliver(part, target)

    # Publishers

    def charged(self, batch: Batch, route: Route, done: Done | None) -> Done | None:
        """Count a batch as owed until the returned call is made in place of `done`."""
        cost = cost_of(batch, route) * route.receivers
        if cost < MIN_CHARGED_COST:
            return done
        self._owe(cost)

        def told(matched: bool, fault: Fault | None) -> None:
            self._owe(-cost)
            if done is not None:
                done(matched, fault)

        return told

    def has_to_wait(self, topic: bytes, count: int) -> bool:
        """Return whether a publisher of messages on a topic has to wait first."""
        if not self.is_full:
            return False
        return (DELIVERY + count) * self._broker.subscriptions.route(topic).receivers >= MIN_CHARGED_COST

    def wait(self, turn: Turn) -> None:
        """Queue a publisher until less is owed."""
        self._waiting.append(turn)

    def go_on(self) -> object:
        """Let the first waiting publisher continue; the next one gets another turn."""
        self._admits = False
        again = None
        if self._waiting and not self.is_full:
            again = self._waiting.popleft().go_on()
        self._owe(0)
        return again

    def _owe(self, cost: int) -> None:
        """Change the owed cost."""
        self._owed += cost
        self.is_full = self._owed >= MAX_OWED
        if self._waiting and not self.is_full and not self._admits:
            self._admits = True
            self._broker.turns.add(self)


def lowest_offsets(batches: Iterable[Batch]) -> dict[Stream, int]:
    """Return the lowest offset of batches in each stream; batches without a stream are left out."""
    found: dict[Stream, int] = {}
    for batch in batches:
        if batch.stream is not None:
            found[batch.stream] = min(batch.offset, found.get(batch.stream, batch.offset))
    return found
