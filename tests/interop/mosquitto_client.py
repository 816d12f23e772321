"""mosquitto_pub and mosquitto_sub, the commands of Eclipse Mosquitto's C library."""

from __future__ import annotations

import signal
import subprocess
import threading
from concurrent.futures import Future
from uuid import uuid4

from .client import (
    SECONDS,
    SESSION_EXPIRY,
    Address,
    Arrival,
    Client,
    Message,
    Properties,
    Refused,
    Subscriber,
    Subscription,
)

# mosquitto_sub prints a message so, and its log (-d) to the same place: the first word tells them apart.
_FORMAT = "MESSAGE\t%t\t%q\t%r\t%x\t%C\t%R\t%D\t%E\t%S\t%P"

SIGNAL_TIME = 5.0
"""Seconds for mosquitto_sub to end at a signal.

Its handler takes the library's locks, so a signal at the wrong moment makes it wait for itself.
"""


def _connection(address: Address, version: int, client_id: str) -> list[str]:
    arguments = ["-V", {4: "mqttv311", 5: "mqttv5"}[version], "-i", client_id]
    if address.transport == "unix":
        return [*arguments, "--unix", address.path]
    arguments += ["-h", address.host, "-p", str(address.port)]
    if address.transport == "tls":
        arguments += ["--cafile", str(address.ca)]
    return arguments


def _parse(line: bytes) -> Message:
    (
        _,
        topic,
        qos,
        retain,
        payload,
        content_type,
        response_topic,
        correlation_data,
        expiry,
        identifier,
        user,
    ) = line.split(b"\t")
    pairs = [pair.partition(":") for pair in user.decode().split()]
    return Message(
        topic.decode(),
        bytes.fromhex(payload.decode()),
        int(qos),
        retain == b"1",
        Properties(
            user=tuple((name, value) for name, _, value in pairs),
            content_type=content_type.decode() or None,
            response_topic=response_topic.decode() or None,
            correlation_data=correlation_data or None,
            expiry=int(expiry) if expiry else None,
            subscription_identifiers=(int(identifier),) if identifier else (),
        ),
    )


class MosquittoSubscriber(Subscriber):
    def __init__(
        self, address: Address, version: int, subscription: Subscription, arrival: Arrival | None
    ) -> None:
        super().__init__(arrival)
        arguments = _connection(address, version, subscription.client_id)
        arguments += ["-t", subscription.topic_filter, "-q", str(subscription.qos)]
        if subscription.session is not None:
            arguments += ["-c", *(["-x", str(SESSION_EXPIRY)] if version == 5 else [])]
        if subscription.identifier is not None:
            arguments += ["-D", "subscribe", "subscription-identifier", str(subscription.identifier)]
        if subscription.will is not None:
            arguments += ["--will-topic", subscription.will.topic, "--will-qos", str(subscription.will.qos)]
            arguments += ["--will-payload", subscription.will.payload.decode()]
        self._subscribed: Future[None] = Future()
        # Without stdbuf, "Subscribed" would stay in the command's buffer until the first message.
        self._process = subprocess.Popen(
            ["stdbuf", "-oL", "mosquitto_sub", *arguments, "-d", "-F", _FORMAT],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        try:
            self._subscribed.result(SECONDS)
        except BaseException:
            self.break_connection()
            raise

    def _read(self) -> None:
        assert self._process.stdout is not None
        log: list[bytes] = []
        for line in self._process.stdout:
            if line.startswith(b"MESSAGE\t"):
                self.arrived(_parse(line.removesuffix(b"\n")))
            elif line.startswith(b"Subscribed "):
                # Twice, if a signal interrupts the printing of the first.
                if not self._subscribed.done():
                    self._subscribed.set_result(None)
            else:
                log.append(line)
        if not self._subscribed.done():
            self._subscribed.set_exception(Refused(b"".join(log).decode()))

    def _end(self, number: int) -> None:
        self._process.send_signal(number)
        try:
            self._process.wait(SIGNAL_TIME)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(SECONDS)
        self._reader.join(SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def close(self) -> None:
        self._end(signal.SIGTERM)

    def break_connection(self) -> None:
        self._end(signal.SIGKILL)


class MosquittoClient(Client):
    transports = ("tcp", "tls", "unix")

    def _subscribe(self, subscription: Subscription, arrival: Arrival | None) -> Subscriber:
        return MosquittoSubscriber(self.address, self.version, subscription, arrival)

    def publish(
        self,
        topic: str,
        *payloads: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> None:
        arguments: list[str | bytes] = [*_connection(self.address, self.version, "interop-" + uuid4().hex)]
        arguments += ["-t", topic, "-q", str(qos), *(["-r"] if retain else [])]
        for name, *values in _named(properties or Properties()):
            arguments += ["-D", "publish", name, *values]
        if len(payloads) == 1:
            arguments.append("-s")
            given = payloads[0]
        else:
            assert not any(b"\n" in payload for payload in payloads), "each line is a message"
            arguments.append("-l")
            given = b"".join(payload + b"\n" for payload in payloads)
        subprocess.run(["mosquitto_pub", *arguments], input=given, check=True, timeout=SECONDS)


def _named(properties: Properties) -> list[tuple[str | bytes, ...]]:
    named: list[tuple[str | bytes, ...]] = [("user-property", *pair) for pair in properties.user]
    if properties.content_type is not None:
        named.append(("content-type", properties.content_type))
    if properties.response_topic is not None:
        named.append(("response-topic", properties.response_topic))
    if properties.correlation_data is not None:
        named.append(("correlation-data", properties.correlation_data))
    if properties.expiry is not None:
        named.append(("message-expiry-interval", str(properties.expiry)))
    return named
