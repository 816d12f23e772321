"""PUBACK and PUBREC for a batch, sent once its messages are committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyrite.broker.journal import Fault
from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.acks import write_acks
from pyrite.protocols.mqtt.delivery import FORM_V5
from pyrite.protocols.mqtt.packets import Ack
from pyrite.protocols.mqtt.reasons import Reason, describe

if TYPE_CHECKING:
    from pyrite.protocols.mqtt.connection import Connection


class Reply:
    """The acknowledgement of one batch from a client."""

    __slots__ = ("_connection", "_high", "_ids", "_low", "_matched", "_qos", "_session", "fresh", "left")

    def __init__(
        self, connection: Connection, qos: int, ids: tuple[int, ...], high: bytes, low: bytes
    ) -> None:
        self._connection = connection
        self._session = connection.session
        self._qos = qos
        self._ids = ids
        self._high = high
        self._low = low
        self._matched = False
        self.left = 1
        """Parts of the batch that are not committed yet."""
        self.fresh: Sequence[int] = ()
        """The ids of QoS 2 messages that are not duplicates."""

    def done(self, matched: bool, fault: Fault | None) -> None:
        """Record that a part is committed, or why it could not be; acknowledge after the last part."""
        if fault is not None:
            self._failed(fault)
            return
        self._matched = self._matched or matched
        self.left -= 1
        if self.left == 0:
            self.send(0 if self._matched else Reason.NO_MATCHING_SUBSCRIBERS)

    def _failed(self, fault: Fault) -> None:
        """Refuse messages that could not be committed. In MQTT 3.1.1, send nothing: it has no refusal."""
        session, connection = self._session, self._connection
        if session is not None and session.incoming is not None:
            session.incoming.difference_update(self.fresh)
            if self.fresh and session.lasting:  # otherwise the ids would still be in use after a restart
                connection.broker.journal.state.save_incoming(session)
        first, self.left = self.left > 0, -1
        if not first or connection.session is not session:
            return
        kind = fields.PUBACK if self._qos == 1 else fields.PUBREC
        reason = Reason.QUOTA_EXCEEDED if fault.full else Reason.UNSPECIFIED_ERROR
        properties = {"reason_string": fault.text} if connection.problem_information else {}
        fresh = set(self.fresh or self._ids)
        for message_id in self._ids:
            if message_id not in fresh:  # a duplicate of a message that is committed
                connection.reply(Ack(kind, message_id, 0))
            elif connection.form == FORM_V5:
                connection.reply(Ack(kind, message_id, reason, dict(properties)))

    def send(self, reason: int, text: str = "") -> None:
        """Acknowledge all messages, or refuse them with a reason, unless the client has left."""
        connection = self._connection
        if connection.session is not self._session:
            return
        if connection.form != FORM_V5:
            reason = 0  # MQTT 3.1.1 has no refusal: the message is acknowledged and dropped
        if reason >= 0x80 and connection.problem_information:  # [MQTT-3.1.2-29]
            kind = fields.PUBACK if self._qos == 1 else fields.PUBREC
            refusal = connection.encoded(Ack(kind, 1, reason, {"reason_string": text or describe(reason)}))
            refusals = bytearray(refusal * len(self._ids))
            if refusal:
                id_at = 2 if refusal[1] < 128 else 3  # reason strings are short enough for two length bytes
                refusals[id_at :: len(refusal)] = self._high
                refusals[id_at + 1 :: len(refusal)] = self._low
                connection.write(refusals)
                connection.broker.figures.packets_sent += len(self._ids)
            return
        connection.write(write_acks(0x40 if self._qos == 1 else 0x50, self._high, self._low, reason))
        connection.broker.figures.packets_sent += len(self._high)
