"""MQTT.js, a client for Node.js, in one Node.js process driven by tests/node/clients.js."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import subprocess
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any
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

NODE = Path(__file__).parent.parent / "node"
INSTALL_TIME = 100.0

_NAMES = {"contentType": "content_type", "responseTopic": "response_topic", "messageExpiryInterval": "expiry"}


def install() -> None:
    """Install the packages of package.json unless they are installed.

    package.json is locked meanwhile: of several workers, one installs and the others wait.
    """
    package = NODE / "package.json"
    wanted = json.loads(package.read_text())["dependencies"]["mqtt"]
    with package.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _installed() != wanted:
            subprocess.run(
                ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund"],
                cwd=NODE,
                check=True,
                capture_output=True,
                timeout=INSTALL_TIME,
            )


def _installed() -> str | None:
    # npm writes this file last, so an installation that was cut short does not count.
    try:
        packages = json.loads((NODE / "node_modules" / ".package-lock.json").read_text())["packages"]
    except FileNotFoundError:
        return None
    version: str | None = packages.get("node_modules/mqtt", {}).get("version")
    return version


class Node:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["node", NODE / "clients.js"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._numbers = itertools.count()
        self._answers: dict[int, Future[None]] = {}
        self._arrivals: dict[str, Arrival] = {}
        self._writing = threading.Lock()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def open(self, address: Address, version: int, subscription: Subscription, arrival: Arrival) -> None:
        """Connect a client under the client id of its subscription."""
        options: dict[str, Any] = {
            "clientId": subscription.client_id,
            "protocolVersion": version,
            "clean": subscription.session is None,
        }
        if subscription.session is not None and version == 5:
            options["properties"] = {"sessionExpiryInterval": SESSION_EXPIRY}
        if subscription.will is not None:
            options["will"] = {
                "topic": subscription.will.topic,
                "payload": base64.b64encode(subscription.will.payload).decode(),
                "qos": subscription.will.qos,
            }
        self._arrivals[subscription.client_id] = arrival
        self.do(
            "open",
            subscription.client_id,
            url=_url(address),
            options=options,
            ca=str(address.ca) if address.ca else None,
        )

    def do(self, command: str, client: str, **values: Any) -> None:
        """Send a command and wait until it is done."""
        number = next(self._numbers)
        answer: Future[None] = Future()
        self._answers[number] = answer
        assert self._process.stdin is not None
        with self._writing:
            self._process.stdin.write(json.dumps({"id": number, "client": client, "do": command, **values}))
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        answer.result(SECONDS)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "message" in said:
                self._arrivals[said["client"]](_message(said["message"]))
                continue
            answer = self._answers.pop(said["id"])
            if "error" in said:
                answer.set_exception(Refused(said["error"]))
            else:
                answer.set_result(None)
        for answer in self._answers.values():
            answer.set_exception(RuntimeError("Node.js ended"))

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(SECONDS)
        self._reader.join(SECONDS)
        self._process.stdout.close()


def _url(address: Address) -> str:
    if address.transport == "unix":
        return f"mqtt+unix://{address.path}"
    scheme = {"tcp": "mqtt", "tls": "mqtts"}.get(address.transport, address.transport)
    return f"{scheme}://{address.host}:{address.port}{address.path}"


def _message(said: dict[str, Any]) -> Message:
    user: list[tuple[str, str]] = []
    for name, values in said["userProperties"].items():
        user += ((name, value) for value in ([values] if isinstance(values, str) else values))
    correlation = said.get("correlationData")
    return Message(
        said["topic"],
        base64.b64decode(said["payload"]),
        said["qos"],
        said["retain"],
        Properties(
            user=tuple(user),
            correlation_data=None if correlation is None else base64.b64decode(correlation),
            subscription_identifiers=tuple(said["subscriptionIdentifiers"]),
            **{ours: said.get(theirs) for theirs, ours in _NAMES.items()},
        ),
    )


def _publish_properties(properties: Properties) -> dict[str, Any]:
    user: dict[str, list[str]] = {}
    for name, value in properties.user:
        user.setdefault(name, []).append(value)
    theirs: dict[str, Any] = {name: getattr(properties, ours) for name, ours in _NAMES.items()}
    theirs["userProperties"] = user or None
    if properties.correlation_data is not None:
        theirs["correlationData"] = base64.b64encode(properties.correlation_data).decode()
    return {name: value for name, value in theirs.items() if value is not None}


class MqttjsSubscriber(Subscriber):
    def __init__(
        self,
        node: Node,
        address: Address,
        version: int,
        subscription: Subscription,
        arrival: Arrival | None,
    ) -> None:
        super().__init__(arrival)
        self._node = node
        self._name = subscription.client_id
        self._closed = False
        node.open(address, version, subscription, self.arrived)
        options: dict[str, Any] = {"qos": subscription.qos}
        if subscription.identifier is not None:
            options["properties"] = {"subscriptionIdentifier": subscription.identifier}
        node.do("subscribe", self._name, filter=subscription.topic_filter, options=options)

    def _end(self, command: str) -> None:
        if not self._closed:
            self._closed = True
            self._node.do(command, self._name)

    def close(self) -> None:
        self._end("close")

    def break_connection(self) -> None:
        self._end("break")


class MqttjsClient(Client):
    transports = ("tcp", "tls", "ws", "wss", "unix")

    def __init__(self, address: Address, version: int, node: Node) -> None:
        super().__init__(address, version)
        self._node = node

    def _subscribe(self, subscription: Subscription, arrival: Arrival | None) -> Subscriber:
        return MqttjsSubscriber(self._node, self.address, self.version, subscription, arrival)

    def publish(
        self,
        topic: str,
        *payloads: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> None:
        name = "interop-" + uuid4().hex
        options: dict[str, Any] = {"qos": qos, "retain": retain}
        if properties is not None:
            options["properties"] = _publish_properties(properties)
        self._node.open(self.address, self.version, Subscription("", client_id=name), lambda message: None)
        try:
            self._node.do(
                "publish",
                name,
                topic=topic,
                payloads=[base64.b64encode(payload).decode() for payload in payloads],
                options=options,
            )
        finally:
            self._node.do("close", name)
