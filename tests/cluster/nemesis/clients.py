"""Clients that publish and subscribe through any node, and record what they were told."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

MAX_IN_FLIGHT = 20
"""Messages that a publisher has sent and that were not acknowledged."""
INTERVAL = 0.04
"""Seconds between two messages of a publisher."""
EXPIRY = 3_600
KEEP_ALIVE = 5
REPEAT_TIME = 0.5
"""Seconds after CONNACK in which a publisher repeats what was not acknowledged, before it goes on."""


class Client:
    """A client with a persistent session, which connects to another node whenever its connection ends."""

    def __init__(self, name: str, addresses: Sequence[str], seed: int) -> None:
        self.name = name
        self._addresses = addresses
        self._choice = random.Random(f"{seed} {name}")
        self._over = threading.Event()
        self._lost = threading.Event()
        self.connections = 0
        self.connected_at: float | None = None
        """When the broker accepted the present connection; None without one."""
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5, reconnect_on_failure=False
        )
        self._client.max_inflight_messages_set(MAX_IN_FLIGHT)
        self._client.on_connect = self._connected
        self._client.on_disconnect = lambda *_: self._lost.set()
        self._client.on_message = self._message
        self._client.on_publish = self._published
        self._properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        self._properties.SessionExpiryInterval = EXPIRY
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._lost.set()
        self._thread.join(15)

    def _run(self) -> None:
        while not self._over.is_set():
            self._lost.clear()
            try:
                self._client.connect(
                    self._choice.choice(self._addresses),
                    keepalive=KEEP_ALIVE,
                    clean_start=False,
                    properties=self._properties,
                )
                self._client.loop_start()
                self._lost.wait()
                self._client.disconnect()
            except OSError:
                pass
            self.connected_at = None
            self._client.loop_stop()
            self._over.wait(0.2)

    def _connected(self, client: paho.Client, _data: Any, _flags: Any, reason: Any, _more: Any) -> None:
        if reason.is_failure:
            self._lost.set()
            return
        self.connections += 1
        self.connected_at = time.monotonic()
        self.ready()

    def ready(self) -> None:
        """Called when the client is connected."""

    def _message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        raise NotImplementedError

    def _published(self, _client: Any, _data: Any, mid: int, reason: Any, _more: Any) -> None:
        raise NotImplementedError


class Publisher(Client):
    """Publishes the numbers 1, 2, 3... on a topic of its own."""

    def __init__(self, name: str, addresses: Sequence[str], seed: int, qos: int) -> None:
        super().__init__(name, addresses, seed)
        self.qos = qos
        self.topic = f"nemesis/{qos}/{name}"
        self.sent = 0
        self.acknowledged: set[int] = set()
        self.refused: set[int] = set()
        self._numbers: dict[int, int] = {}
        self._answers: queue.SimpleQueue[tuple[int, bool]] = queue.SimpleQueue()
        """Packet identifiers and refusals, from paho's thread, which holds a lock of its own meanwhile."""
        self._feeder = threading.Thread(target=self._feed, daemon=True)
        self.is_paused = False

    def start(self) -> None:
        super().start()
        self._feeder.start()

    def _feed(self) -> None:
        while not self._over.wait(INTERVAL):
            while not self._answers.empty():
                mid, is_refused = self._answers.get()
                number = self._numbers.pop(mid)
                (self.refused if is_refused else self.acknowledged).add(number)
            # paho would send a new message at once, before those that it repeats after CONNACK.
            is_open = self.connected_at is not None and time.monotonic() > self.connected_at + REPEAT_TIME
            if not is_open or self.is_paused or len(self._numbers) >= MAX_IN_FLIGHT:
                continue
            number = self.sent + 1
            info = self._client.publish(self.topic, b"%s %d" % (self.name.encode(), number), self.qos)
            if info.rc in (paho.MQTT_ERR_SUCCESS, paho.MQTT_ERR_NO_CONN):
                self.sent = number
                self._numbers[info.mid] = number

    def _published(self, _client: Any, _data: Any, mid: int, reason: Any, _more: Any) -> None:
        self._answers.put((mid, reason.is_failure))

    @property
    def outstanding(self) -> int:
        return len(self._numbers)


class Subscriber(Client):
    """Records the numbers that it receives, by publisher."""

    def __init__(self, name: str, addresses: Sequence[str], seed: int, topic_filter: str, qos: int) -> None:
        super().__init__(name, addresses, seed)
        self._filter = topic_filter
        self._qos = qos
        self.subscribed = threading.Event()
        self.received: dict[str, list[int]] = defaultdict(list)
        self._client.on_subscribe = lambda *_: self.subscribed.set()

    def ready(self) -> None:
        if not self.subscribed.is_set():
            self._client.subscribe(self._filter, self._qos)

    def _message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        name, _, number = message.payload.decode().partition(" ")
        self.received[name].append(int(number))
