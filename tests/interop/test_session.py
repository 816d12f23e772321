"""A persistent session outlasts its connection."""

from __future__ import annotations

from uuid import uuid4

from .client import Client
from .matrix import every_client


@every_client
def test_a_persistent_session_receives_what_it_missed(client: Client, topic: str) -> None:
    session = "interop-" + uuid4().hex
    client.subscribe(topic, qos=1, session=session).close()
    missed = [b"missed %d" % number for number in range(20)]
    client.publish(topic, *missed, qos=1)
    returned = client.subscribe(topic, qos=1, session=session)
    assert [message.payload for message in returned.receive_many(20)] == missed
