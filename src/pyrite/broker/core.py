"""The broker: sessions, subscriptions and retained messages, and the way of a batch from one to the others.

It has no sockets, no files and no clock: connections call it, `tick` tells it the time, and `flush` is
called by whoever drives it, after `wake` said that there is something to send.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

from pyrite.broker.access import Access
from pyrite.broker.figures import Figures
from pyrite.broker.limits import Limits
from pyrite.broker.link import Link
from pyrite.broker.message import Batch
from pyrite.broker.session import NEVER, NO_SUBSCRIPTIONS, Session
from pyrite.broker.subscriptions import Route, SharedGroup, Subscription, SubscriptionTree
from pyrite.broker.timers import Timers
from pyrite.broker.topics import TopicTree


def _no_clock() -> float:
    """Stand in for a clock: for whoever drives the broker by hand, everything takes no time."""
    return 0.0


SYSTEM = b"$SYS/"
"""How the topics begin on which the broker alone publishes; what it retains there is its own affair."""


def _no_wake() -> None:
    """Stand in for an event loop: whoever drives the broker by hand flushes by hand."""


class Broker:
    """One broker's whole state, and every decision on it."""

    def __init__(
        self,
        limits: Limits | None = None,
        access: Access | None = None,
        wake: Callable[[], object] = _no_wake,
        clock: Callable[[], float] = _no_clock,
    ) -> None:
        self.limits = limits or Limits()
        self.access = access or Access()
        self.figures = Figures()
        self.now = 0.0
        """The time, in seconds from some point in the past; as `tick` told it."""
        self.timers = Timers()
        self.sessions: dict[str, Session] = {}
        self.subscriptions = SubscriptionTree()
        self.retained: TopicTree[Batch] = TopicTree()
        self._system_retained = 0
        self._wake = wake
        self.clock = clock
        """A fine clock, only to see how long something takes."""
        self._interrupted: list[Link] = []
        self._dirty: list[Link] = []

    # Time and output

    def tick(self, now: float) -> None:
        """Tell the time, and do what is due."""
        self.now = now
        self.timers.advance(now)

    def dirty(self, link: Link) -> None:
        """Note that `link` has something to send."""
        if not self._dirty:
            self._wake()
        self._dirty.append(link)

    def flush(self) -> None:
        """Send everything that links have gathered: one write each."""
        links = self._dirty
        self._dirty = []
        for link in links:
            link.flush()

    def interrupted(self, link: Link) -> None:
        """Note that `link` has had its turn and has more to do."""
        if not self._interrupted:
            self._wake()
        self._interrupted.append(link)

    @property
    def has_interrupted(self) -> bool:
        """Whether anyone waits for a turn."""
        return bool(self._interrupted)

    def take_turns(self) -> None:
        """Let everyone who was interrupted go on, for a turn each."""
        links, self._interrupted = self._interrupted, []
        for link in links:
            link.go_on()

    # Messages

    def publish(self, batch: Batch) -> bool:
        """Give a batch to everyone who asked for its topic; retain its last message if that is asked for.

        Tell whether anyone asked.
        """
        routes = self.subscriptions
        matched = self.send(batch, routes.routes.get(batch.topic) or routes.route(batch.topic))
        if batch.retain:
            self._retain(batch)
        return matched

    def send(self, batch: Batch, route: Route) -> bool:
        """Give a batch to everyone on its route; tell whether there is anyone. HOT."""
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
        for group in route.groups:
            self.deal(batch, group)
        return bool(route.targets or route.groups)

    def deal(self, batch: Batch, group: SharedGroup, besides: Session | None = None) -> None:
        """Give a batch to the members of a shared subscription, each message to one of them."""
        for member, start, stop in group.shares(batch.count, besides):
            member.session.deliver(batch.part(start, stop), member)

    def may_retain(self, topic: bytes) -> bool:
        """Tell whether there is room to retain a message on `topic`."""
        return (
            topic in self.retained.values
            or topic.startswith(SYSTEM)
            or len(self.retained) - self._system_retained < self.limits.max_retained_messages
        )

    def _retain(self, batch: Batch) -> None:
        last = batch.count - 1
        payload = batch.payload(last)
        if not payload:
            self.retained.pop(batch.topic)  # [MQTT-3.3.1-6], [MQTT-3.3.1-7]
        elif not self.may_retain(batch.topic):
            self.figures.retained_refused += 1
        else:
            if batch.topic.startswith(SYSTEM) and batch.topic not in self.retained.values:
                self._system_retained += 1
            self.retained[batch.topic] = Batch(
                batch.topic, payload, batch.qos, True, batch.properties, batch.expires_at, batch.origin
            )

    def retained_for(self, topic_filter: bytes) -> Iterator[Batch]:
        """Yield the retained messages that match a filter, without those that have expired."""
        for topic in list(self.retained.matching(topic_filter)):
            batch = self.retained.values.get(topic)
            if batch is None:
                continue  # it went while the others were on their way
            if batch.expires_at is not None and batch.expires_at <= self.now:
                self.retained.pop(topic)  # [MQTT-3.3.2-5]
            else:
                yield batch

    # Subscriptions

    def subscribe(self, subscription: Subscription, group_name: str | None, key: bytes) -> bool:
        """Add a subscription or replace the one under `key`, its full filter; tell whether it was new."""
        session = subscription.session
        if session.subscriptions is NO_SUBSCRIPTIONS:
            session.subscriptions = {}
        session.subscriptions[key] = subscription
        return self.subscriptions.add(subscription, group_name)

    def unsubscribe(self, session: Session, key: bytes) -> bool:
        """Remove the subscription under `key`; tell whether there was one."""
        subscription = session.subscriptions.pop(key, None)
        if subscription is None:
            return False
        self.subscriptions.remove(subscription)
        return True

    def send_retained(self, subscription: Subscription) -> Iterator[None]:
        """Send a subscriber what was retained on its topics before it came: one message at each step."""
        # The flag says that these were retained, whatever the subscription wants of live messages
        # [MQTT-3.3.1-8]; and only this subscription's identifier goes with them.
        target = Subscription(
            subscription.session,
            subscription.topic_filter,
            subscription.qos,
            retain_as_published=True,
            identifiers=subscription.identifiers,
        )
        for batch in self.retained_for(subscription.topic_filter):
            if not (subscription.no_local and batch.origin == subscription.session.client_id):
                subscription.session.deliver(batch, target)
                batch.wires = None  # what is retained is kept once, not in every form
            yield

    # Sessions

    def new_client_id(self) -> str:
        """Return a client id that no session has."""
        return f"pyrite-{secrets.token_hex(10)}"

    def open_session(self, client_id: str, clean_start: bool) -> tuple[Session, bool]:
        """Return the session of a client that connects, and whether it was there before.

        A connection that holds it now is displaced [MQTT-3.1.4-3].
        """
        session = self.sessions.get(client_id)
        if session is not None:
            if session.link is not None:
                link = session.link
                link.displaced()
                self.close_session(session, link, send_will=True, resumed=not clean_start)
            if clean_start and client_id in self.sessions:
                self.end_session(session)  # [MQTT-3.1.2-4]
        session = self.sessions.get(client_id)
        if session is not None:
            return session, True
        session = self.sessions[client_id] = Session(self, client_id)
        return session, False

    def attached(self, session: Session, link: Link, window: int) -> None:
        """Connect a session and a link: the client has been let in."""
        self.timers.cancel(session)
        session.attach(link, window)
        figures = self.figures
        figures.connections += 1
        figures.clients_maximum = max(figures.clients_maximum, len(self.sessions))

    def close_session(self, session: Session, link: Link, send_will: bool, resumed: bool = False) -> None:
        """Note that a client's connection is over; its will goes out, now or later, if `send_will`.

        `resumed` says that another connection goes on with the session, so a delayed will is not sent.
        """
        if session.link is not link:
            return
        self.figures.connections -= 1
        session.detach()
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
        for subscription in session.subscriptions.values():
            self.subscriptions.remove(subscription)
        session.subscriptions = NO_SUBSCRIPTIONS
        if session.will is not None:
            self._send_will(session)  # [MQTT-3.1.2-8]: a delayed will goes out when the session ends
        session.hand_over()
        session.clear()

    def _send_will(self, session: Session) -> None:
        will = session.will
        session.will = None
        session.will_at = None
        if will is not None:
            batch = will.batch
            if batch.properties is not None and batch.properties.message_expiry is not None:
                batch.expires_at = self.now + batch.properties.message_expiry
            self.publish(batch)
