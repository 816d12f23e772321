"""The sessions of all clients: opened, connected, closed, expired and ended; and their wills."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from typing import TYPE_CHECKING

from sortedcontainers import SortedList

from pyrite.broker.reassigning import return_restored
from pyrite.broker.record import DeliveryRecord, snapshot
from pyrite.broker.session import NEVER, NO_SUBSCRIPTIONS, Session

if TYPE_CHECKING:
    from pyrite.broker.access import Credentials
    from pyrite.broker.accounts import Account
    from pyrite.broker.core import Broker
    from pyrite.broker.link import Link
    from pyrite.broker.shared_group import SharedGroup


class Sessions:
    """Sessions by client identifier, and their lifetime."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.by_id: dict[str, Session] = {}
        self.ids: SortedList[str] = SortedList()
        """The client identifiers in order, for lists in pages."""
        self.presence = 0
        """Changes whenever a client connects or disconnects."""
        self._takeovers: dict[str, Credentials] = {}
        """The clients that are about to resume large sessions, by client identifier."""

    def new_client_id(self) -> str:
        """Return an unused client identifier."""
        return f"pyrite-{secrets.token_hex(10)}"

    # Clients connect

    def take_over(self, credentials: Credentials) -> Generator[None, None, bool]:
        """Prepare to resume a large session in steps: end its connection, and prune it for a client.

        Return false if a later connection has claimed it meanwhile. Otherwise the caller opens it next.
        """
        client_id, takeovers, policy = credentials.client_id, self._takeovers, self._broker.policy
        takeovers[client_id] = credentials
        try:
            version = None
            while takeovers.get(client_id) is credentials:
                session = self.by_id.get(client_id)
                if session is None or version == policy.version:
                    return True
                version = policy.version
                if session.link is not None:
                    session.link.displaced()  # [MQTT-3.1.4-3]
                    self.close(session, session.link, True)
                    if session.has_ended:
                        continue
                for _ in self._broker.subscribing.prune(session, credentials):
                    yield
                    if session.has_ended:
                        version = None
                        break
            return False
        finally:
            if takeovers.get(client_id) is credentials:
                del takeovers[client_id]

    def open(self, client_id: str, clean_start: bool, account: Account | None = None) -> tuple[Session, bool]:
        """Return the session of a client that connects, and whether it existed.

        It counts for `account` from now on. Its present connection is displaced [MQTT-3.1.4-3].
        """
        self._takeovers.pop(client_id, None)
        session = self.by_id.get(client_id)
        if session is not None:
            self.due(session)  # it may have expired since the last tick, or before a restart
            if session.link is not None:
                link = session.link
                link.displaced()
                self.close(session, link, True, resumed=not clean_start, replaced=clean_start)
            if clean_start and client_id in self.by_id:
                self.end(session)  # [MQTT-3.1.2-4]
        session = self.by_id.get(client_id)
        if session is not None:
            session.expires_at = None
            self.own(session, account)
            return session, True
        session = self._create(client_id)
        self.own(session, account)
        return session, False

    def _create(self, client_id: str) -> Session:
        session = self.by_id[client_id] = Session(self._broker, client_id)
        self.ids.add(client_id)
        return session

    def own(self, session: Session, account: Account | None) -> None:
        """Count a session for an account from now on."""
        before = session.account
        self._broker.quotas.own(session, account)
        if session.account is not before and session.lasting:
            self._broker.journal.state.save_owner(session)

    def set_expiry(self, session: Session, expiry: int) -> None:
        """Set how long a session outlives its connection; save it if it outlives the process, too."""
        journal = self._broker.journal
        session.expiry = expiry
        if journal.lasting and (expiry or session.lasting):
            if session.record is None:
                session.record = DeliveryRecord(session, snapshot(session))
                journal.state.save_owner(session)
                journal.state.save_deliveries(session)
            journal.state.save_session(session)

    def attached(self, session: Session, link: Link, window: int) -> None:
        """Connect a session to the link of a client that was accepted."""
        broker = self._broker
        broker.timers.cancel(session)
        self.presence += 1
        session.attach(link, window)
        account = session.account
        if account is not None:
            account.connections += 1
            link.meter = account.meter
            if account.meter is not None and not session.lasting:
                broker.journal.state.save_owner(session)  # its messages count after a crash, too
        broker.journal.state.save_will(session)
        figures = broker.figures
        figures.connections += 1
        figures.clients_maximum = max(figures.clients_maximum, len(self.by_id))

    # Restart

    def restore(self, client_id: str, expiry: int) -> Session:
        """Create a session of an earlier process."""
        session = self._create(client_id)
        session.expiry = expiry
        return session

    def restored(self, session: Session) -> None:
        """Start the expiry of a restored session: its client is away since the broker stopped."""
        if session.expires_at is None and session.expiry != NEVER:
            session.expires_at = self._broker.now + session.expiry
            self._broker.journal.state.save_session(session)  # or each restart would extend its life
        self._set_timer(session)

    # Clients leave

    def close(
        self, session: Session, link: Link, send_will: bool, resumed: bool = False, replaced: bool = False
    ) -> None:
        """Handle the end of a client's connection; publish its will, now or later, if `send_will`.

        `resumed`: another connection continues the session, so a delayed will is dropped. `replaced`: the
        caller ends the session next, whatever its expiry.
        """
        if session.link is not link:
            return
        broker = self._broker
        broker.figures.connections -= 1
        if session.account is not None:
            session.account.connections -= 1
        self.presence += 1
        session.detach(ends=replaced or session.expiry == 0)
        will = session.will
        if not send_will:
            session.will = None  # [MQTT-3.14.4-3]
        elif will is not None:
            if will.delay == 0 or session.expiry == 0:
                self._publish_will(session)
            elif resumed:
                session.will = None  # [MQTT-3.1.3-9]
            else:
                session.will_at = broker.now + will.delay
        if session.will is None:
            broker.journal.state.save_will(session)
        if session.expiry == 0:
            self.end(session)  # [MQTT-3.1.2-23]
            return
        if resumed:
            return
        if session.expiry != NEVER:
            session.expires_at = broker.now + session.expiry
        if session.lasting:
            broker.journal.state.save_session(session)
        self._set_timer(session)

    def _set_timer(self, session: Session) -> None:
        times = [when for when in (session.will_at, session.expires_at) if when is not None]
        if times:
            self._broker.timers.set(session, min(times))

    def due(self, session: Session) -> None:
        """Publish the delayed will of an absent session, or end the session, if it is time."""
        if session.link is not None:
            return
        now = self._broker.now
        if session.expires_at is not None and session.expires_at <= now:
            self._broker.figures.clients_expired += 1
            self.end(session)
            return
        if session.will_at is not None and session.will_at <= now:
            self._publish_will(session)
        self._set_timer(session)

    def end(self, session: Session) -> None:
        """Remove a session with everything that belongs to it."""
        broker = self._broker
        broker.timers.cancel(session)
        del self.by_id[session.client_id]
        self.ids.remove(session.client_id)
        account = session.account
        if account is not None:
            account.sessions -= 1
            account.subscriptions -= len(session.subscriptions)
            broker.journal.state.drop_owner(session)
        subscriptions = list(session.subscriptions.values())
        groups: list[SharedGroup] = []
        if session.was_group_member:
            groups = [one.group for one in subscriptions if one.group is not None]
        if session.replays:
            for subscription in subscriptions:
                broker.following.end_replay(subscription)
        broker.subscribing.remove_all(subscriptions)
        session.subscriptions = NO_SUBSCRIPTIONS
        if session.will is not None:
            self._publish_will(session)  # [MQTT-3.1.2-8]: a delayed will is published now
        return_restored(session, groups)
        lasting = session.lasting
        session.end()
        if lasting:
            broker.journal.state.drop_session(session)
        broker.journal.state.release_session(session)

    def move(self, session: Session, clean_start: bool) -> None:
        """Forget a session that another node has taken over; its connection here is displaced."""
        link = session.link
        if link is not None:
            link.displaced()
            self.close(session, link, True, resumed=not clean_start, replaced=clean_start)
        if self.by_id.get(session.client_id) is session:
            if not clean_start and session.will is not None:
                session.will = None  # [MQTT-3.1.3-9]
                self._broker.journal.state.save_will(session)
            self.end(session)

    # Wills

    def _publish_will(self, session: Session) -> None:
        """Publish a session's will, unless its author has lost the right since it connected."""
        broker, will = self._broker, session.will
        session.will = None
        session.will_at = None
        if will is None or not broker.policy.may_leave_will(will.author, will.batch.topic):
            return
        batch = will.batch
        if batch.properties is not None and batch.properties.message_expiry is not None:
            batch.expires_at = broker.now + batch.properties.message_expiry
        broker.publishing.publish_will(session, batch)
