"""The sending half of a line connection: sends batches as Message frames."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pyrite.broker.link import Transport
from pyrite.broker.message import Batch
from pyrite.broker.subscriptions import Subscription
from pyrite.protocols.conversation import Conversation
from pyrite.protocols.line.messages import numbered_message, plain_messages, single_messages
from pyrite.protocols.line.newest import NewestMessages
from pyrite.protocols.line.numbers import Numbers

if TYPE_CHECKING:
    from pyrite.broker.core import Broker


class LineDelivery(Conversation):
    """Sends messages to one client, with a number where the client has to acknowledge them."""

    __slots__ = ("_newest", "numbers")

    def __init__(self, broker: Broker, transport: Transport, address: str) -> None:
        super().__init__(broker, transport, address)
        self.numbers = Numbers()
        self._newest: NewestMessages | None = None

    @property
    def newest(self) -> NewestMessages:
        """The messages of subscriptions with `latest`; few clients have one."""
        if self._newest is None:
            self._newest = NewestMessages(self)
        return self._newest

    @property
    def window(self) -> int:
        """Maximum number of messages that wait for the client's Ack."""
        return self.broker.limits.max_inflight

    def can_take(self, batch: Batch, target: Subscription, qos: int) -> bool:
        """Return true: the protocol has no maximum message size."""
        return True

    def takes_as_it_came(self, batch: Batch, target: Subscription, qos: int) -> bool:
        """Return false: a Publish frame is never sent unchanged."""
        return False

    def send_qos0(self, batch: Batch, target: Subscription) -> None:
        """Send a whole batch without acknowledgement. HOT: once per batch and subscriber."""
        for part in batch.parts():
            if target.latest:
                self.newest.send(part)
                continue
            data = plain_messages(part)
            if not self.has_room(len(data)):
                if target.lossless and part.stream is not None:
                    self.broker.following.defer(target, part)
                    return
                self.broker.figures.messages_dropped += part.count
                continue
            self.write(data)
            self.count_sent(part.count, len(data))

    def send(
        self, batch: Batch, start: int, stop: int, target: Subscription, qos: int, first_id: int, dup: bool
    ) -> bool:
        """Send messages, each with its number if the client has to acknowledge it."""
        if not qos:
            self.send_qos0(batch.part(start, stop), target)
            return True
        messages = single_messages(batch, start, stop)
        data = b"".join([numbered_message(one, number) for number, one in enumerate(messages, first_id)])
        self.write(data)
        self.count_sent(stop - start, len(data))
        return True

    def send_numbered(self, number: int, frame: bytes) -> None:
        """Send a message that the connection numbered."""
        self.write(frame)
        self.count_sent(1, len(frame))

    def acknowledged(self, number: int) -> None:
        """Record the Ack of a message; over TCP, do nothing."""

    def count_sent(self, count: int, size: int) -> None:
        """Count sent messages and their bytes."""
        figures = self.broker.figures
        figures.publish_sent += count
        figures.publish_bytes_sent += size

    def release(self, message_id: int) -> None:
        """End a QoS 2 delivery that began over MQTT: the client already has the message."""
        if self.session is not None:
            self.broker.turns.soon(partial(self.session.complete, (message_id,)))
