"""Subscriptions with `latest`: send the client only the newest message of each topic.

While a message waits for its Ack, newer messages on its topic replace each other in the session; the newest
is sent when the Ack arrives.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from pyrite.broker.message import Batch
from pyrite.broker.sending import MESSAGES_PER_CLOCK
from pyrite.broker.timers import TURN
from pyrite.protocols.line.messages import numbered_message

if TYPE_CHECKING:
    from pyrite.protocols.line.delivery import LineDelivery


class NewestMessages:
    """The topics whose newest message a client has not acknowledged."""

    __slots__ = ("_connection", "_due", "_more_is_scheduled", "_resumed", "_under_way")

    def __init__(self, connection: LineDelivery) -> None:
        self._connection = connection
        self._under_way: dict[bytes, Batch] = {}
        """The message of each topic that was sent and is not acknowledged."""
        self._due: OrderedDict[bytes, None] = OrderedDict()
        """Topics whose newest message has to be sent, in order."""
        self._resumed: deque[bytes] = deque()
        """Topics whose newest message waited when the client connected; they are sent first."""
        self._more_is_scheduled = False

    def resume(self) -> None:
        """Send the messages that the session kept while the client was away."""
        session = self._connection.session
        assert session is not None
        assert session.latest is not None
        self._resumed = deque(session.latest.values)
        self._send_due()

    def send(self, batch: Batch) -> None:
        """Send the newest message of a batch of one topic, or keep it instead of an older message."""
        assert self._connection.session is not None
        self._connection.session.keep_latest(batch)
        if batch.topic not in self._under_way:
            self._due[batch.topic] = None
            self._send_due()

    def acknowledged(self, topic: bytes) -> None:
        """Record the Ack of a topic's message; send a newer message of the topic if there is one."""
        session = self._connection.session
        sent = self._under_way.pop(topic, None)
        latest = session.latest if session is not None else None
        if sent is None or latest is None:
            return
        if latest.values.get(topic) is sent:
            latest.remove(topic)
        elif topic in latest.values:
            self._due[topic] = None
        self._send_due()

    def _send_due(self) -> None:
        """Send the newest messages of due topics until the window is full."""
        connection = self._connection
        broker, session = connection.broker, connection.session
        latest = session.latest if session is not None else None
        if latest is None:
            return
        until, count = 0.0, 0
        resumed = self._resumed
        while (resumed or self._due) and len(self._under_way) < connection.window:
            count += 1
            if count % MESSAGES_PER_CLOCK == 0:
                until = until or broker.clock() + TURN
                if broker.clock() > until:
                    if not self._more_is_scheduled:
                        self._more_is_scheduled = True
                        broker.turns.soon(self._send_more)
                    return
            topic = resumed.popleft() if resumed else self._due.popitem(last=False)[0]
            newest = latest.values.get(topic)
            if newest is None or topic in self._under_way:
                continue
            if newest.expires_at is not None and newest.expires_at <= broker.now:
                latest.remove(topic)
                continue
            self._under_way[topic] = newest
            number = connection.numbers.assign(topic)
            connection.send_numbered(number, numbered_message(newest, number))

    def _send_more(self) -> None:
        self._more_is_scheduled = False
        self._send_due()
