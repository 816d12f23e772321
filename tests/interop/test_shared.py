"""A shared subscription delivers each message to one of its members."""

from __future__ import annotations

import queue

from .client import SECONDS, Client, Message
from .matrix import every_client_of_mqtt_5


@every_client_of_mqtt_5
def test_a_shared_subscription_splits_the_messages_between_two_members(client: Client, topic: str) -> None:
    arrivals: queue.Queue[tuple[str, bytes]] = queue.Queue()

    def join(member: str) -> None:
        def arrival(message: Message) -> None:
            arrivals.put((member, message.payload))

        client.subscribe(f"$share/group/{topic}", qos=1, arrival=arrival)

    join("first")
    join("second")
    jobs = [b"job %d" % number for number in range(50)]
    client.publish(topic, *jobs, qos=1)
    received = [arrivals.get(timeout=SECONDS) for _ in jobs]
    assert sorted(payload for _, payload in received) == sorted(jobs)
    assert {member for member, _ in received} == {"first", "second"}
