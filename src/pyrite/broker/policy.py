"""Policy: may a client publish, subscribe, pull, list or administer this topic? Decided here, and only here.

Each decision returns a refusal or None, and looks at three things in this order: whether the client was
accepted, what the access rules grant it, and which topics may be used at all (`[topics] policy`). A client
without a right is never told which topics exist.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from pyrite.broker.catalog import ANY, LISTED
from pyrite.broker.retained import SYSTEM
from pyrite.broker.targets import asks_for

if TYPE_CHECKING:
    from pyrite.broker.access import Credentials
    from pyrite.broker.core import Broker
    from pyrite.broker.session import Session
    from pyrite.broker.withholding import MayRead

logger = logging.getLogger(__name__)


class Refusal(NamedTuple):
    """Why a client may not do something."""

    text: str
    is_unauthorized: bool
    """Whether the client lacks the right; otherwise no client may use the topic."""


LOG_IN_FIRST = Refusal("not authorized: log in first", True)


class Policy:
    """What clients may do."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.restricts_topics = broker.catalog.policy != ANY
        """Whether some topics may not be used."""

    @property
    def allows_all(self) -> bool:
        """Whether any client that is accepted may use any topic but $SYS."""
        return not self.restricts_topics and not self._broker.access.checks_topics

    @property
    def is_lasting(self) -> bool:
        """Whether a right to publish lasts until the broker is told otherwise (`rights_changed`)."""
        return not self.restricts_topics and self._broker.access.tells_of_changes

    # Decisions

    def refuse_publish(self, who: Credentials, topic: bytes, qos: int = 0) -> Refusal | None:
        """Return why a client may not publish on a topic with a QoS, or None."""
        if topic.startswith(SYSTEM):
            return Refusal("not authorized: only the broker publishes on $SYS", True)
        return (
            self._refuse_right("publish", who, topic)
            or self._refuse_topic(topic)
            or self._refuse_qos(topic, qos)
        )

    def refuse_subscribe(
        self, who: Credentials, topic_filter: bytes, replays: bool = False
    ) -> Refusal | None:
        """Return why a client may not subscribe to a filter, and replay the past if `replays`; or None."""
        refusal = self._refuse_right("subscribe", who, topic_filter)
        if refusal is None and replays:
            refusal = self._refuse_right("pull", who, topic_filter)
        return refusal or self._refuse_filter(topic_filter)

    def refuse_pull(self, who: Credentials, topic_filter: bytes) -> Refusal | None:
        """Return why a client may not read messages that match a filter from the log, or None."""
        return self._refuse_right("pull", who, topic_filter)

    def refuse_consumer(self, who: Credentials, topic_filter: bytes) -> Refusal | None:
        """Return why a client may not create a consumer of a filter, or None."""
        return self._refuse_right("pull", who, topic_filter) or self._refuse_filter(topic_filter)

    def refuse_list(self, who: Credentials, topic_filter: bytes) -> Refusal | None:
        """Return why a client may not list the topics that match a filter, or None."""
        return self._refuse_right("subscribe", who, topic_filter)

    def refuse_admin(self, who: Credentials, topic_filter: bytes = b"#") -> Refusal | None:
        """Return why a client may not administer the topics that match a filter, or None.

        Administering all topics includes the broker itself.
        """
        return self._refuse_right("admin", who, topic_filter)

    def refuse_everywhere(
        self, who: Credentials, rights: Iterable[str], within: bytes = b"#"
    ) -> Refusal | None:
        """Return why a client has none of some rights on any topic of a filter, or None.

        The broker asks before it knows the topic, so that it does no work for a client without the right.
        """
        rights = tuple(rights)
        if not self._is_identified(who):
            return LOG_IN_FIRST
        access = self._broker.access
        if access.checks_topics:
            name = within.decode()
            if not any(access.may_within(right, who, name) for right in rights):
                return Refusal(f"not authorized: {' or '.join(rights)}", True)
        return None

    # Rights

    def has_right(self, right: str, who: Credentials, topic_filter: bytes) -> bool:
        """Return whether the access rules grant a client a right on all topics of a filter."""
        access = self._broker.access
        if not access.checks_topics:
            return True
        name = topic_filter.decode()
        if right == "publish":
            return access.may_publish(who, name)
        if right == "subscribe":
            return access.may_subscribe(who, name)
        if right == "pull":
            return access.may_pull(who, name)
        return access.may_admin(who, name)

    def is_welcome(self, who: Credentials) -> bool:
        """Return whether an accepted client may stay; False if the access plug-in fails."""
        try:
            return self._broker.access.is_welcome(who)
        except Exception:
            logger.exception("internal error in the access plug-in")
            return False

    def may_leave_will(self, who: Credentials, topic: bytes) -> bool:
        """Return whether the will of a client that was accepted may be published now."""
        return self.is_welcome(who) and self.has_right("publish", who, topic)

    @property
    def version(self) -> object:
        """Differs after every change of users or rules."""
        return (self._broker.admission.version, self._broker.access)

    def rights_of(self, session: Session) -> object:
        """Return a value that stays equal as long as the rights of a session's user stay the same."""
        return (session.identity, self._broker.admission.version, self._broker.access)

    def reading_rights(self, session: Session, who: Credentials) -> MayRead | None:
        """Return a function that tells whether a client may be sent messages of a topic.

        A subscription that was granted covers all topics of its filter, also with a plug-in that knows only
        filters. Return None if the client may be sent all that its session holds: nothing restricts it, or
        the session was pruned for this user and the rights have not changed since.
        """
        access = self._broker.access
        if not access.checks_topics:
            return None
        if access.tells_of_changes and session.pruned_as == self.rights_of(session):
            return None

        @cache
        def may_read(topic: bytes) -> bool:
            return self.has_right("subscribe", who, topic) or asks_for(session, topic)

        return may_read

    def _is_identified(self, who: Credentials) -> bool:
        return who.is_accepted or self._broker.access.lets_everyone_in

    def _refuse_right(self, right: str, who: Credentials, topic_filter: bytes) -> Refusal | None:
        if not self._is_identified(who):
            return LOG_IN_FIRST
        if self.has_right(right, who, topic_filter):
            return None
        return Refusal(f"not authorized: {right} {topic_filter.decode()!r}", True)

    # Topics

    def _refuse_qos(self, topic: bytes, qos: int) -> Refusal | None:
        """Refuse to acknowledge what no stream keeps. Streams capture every topic that has no $ in front."""
        journal = self._broker.journal
        if not qos or not topic.startswith(b"$") or not journal.lasting or journal.stream_for(topic):
            return None
        name = topic.decode(errors="replace")
        return Refusal(f"QoS {qos} is refused on {name!r}: no stream captures this topic; use QoS 0", False)

    def _refuse_filter(self, topic_filter: bytes) -> Refusal | None:
        if b"+" in topic_filter or b"#" in topic_filter:
            return None
        return self._refuse_topic(topic_filter)

    def _refuse_topic(self, topic: bytes) -> Refusal | None:
        catalog = self._broker.catalog
        if not self.restricts_topics or topic in catalog.created.values or topic.startswith(b"$"):
            return None
        name = topic.decode()
        if catalog.policy == LISTED:
            return Refusal(f"there is no topic {name!r} here; allowed topics: {catalog.names()}", False)
        return Refusal(f"there is no topic {name!r}: create it first", False)
