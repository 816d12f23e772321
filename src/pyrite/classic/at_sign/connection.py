"""Connections of the at-sign broker, and the client they belong to.

A request is a line `type@topic@contents@flag`, with the types connect, publish, subscribe, list and
disconnect in upper or lower case. Each is translated to the line protocol, and its answer is translated back.

A client has three connections. The first two carry requests and their answers; the third carries messages,
one contents per line. They start with the lines `client`, `alternatively@KEY` and `pushes@KEY`, which keeps
clients that connect at the same time apart; the answers are `client@KEY`, `alternatively` and `pushes`. A
connection that starts with a request is a client by itself, and receives everything.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from pyrite.broker.core import Broker
from pyrite.broker.link import Transport
from pyrite.broker.subscriptions import Subscription
from pyrite.classic.at_sign.levels import Level, place
from pyrite.classic.translating import TranslatingConnection
from pyrite.protocols.line import frames
from pyrite.protocols.line.frames import Line
from pyrite.topics.filters import InvalidTopic, check_topic

MAX_TOPIC = 65_535
"""Maximum length of a topic in bytes."""
EXPECTED = "expected type@topic@contents@flag: connect, publish, subscribe, list, disconnect"


class AtSignClient:
    """A client's connections and subscriptions."""

    def __init__(self) -> None:
        self.key = secrets.token_hex(16)
        self.connections: list[AtSignConnection] = []
        self.pushes: AtSignConnection | None = None
        self.subs: dict[str, Level] = {}
        self.count = 0
        """The number of its subscriptions."""

    def subscribe(self, topic: str) -> None:
        """Add a subscription; * stands for any level, and at the end for all levels below."""
        level = place(self.subs, topic, 0)
        self.count += not level.wanted
        level.wanted = True

    def wants(self, topic: str) -> bool:
        """True if the client is subscribed to a topic."""
        reached = [self.subs]
        found: list[Level] = []
        for name in topic.split("/"):
            if any("*" in below and below["*"].wanted for below in reached):
                return True
            found = [below[one] for below in reached for one in (name, "*") if one in below]
            reached = [level[0] for level in found]
        return any(level.wanted for level in found)

    def notify(self, topic: str, contents: bytes) -> None:
        """Send the client the contents of a message, if it is subscribed to the topic."""
        if self.pushes is not None and self.wants(topic):
            self.pushes.tell(contents)


class AtSignConnection(TranslatingConnection):
    """One connection of a client."""

    __slots__ = ("client", "clients")

    def __init__(
        self, broker: Broker, clients: dict[str, AtSignClient], transport: Transport, address: str, peer: str
    ) -> None:
        super().__init__(broker, transport, address, peer)
        self.clients = clients
        self.client: AtSignClient | None = None

    def request(self, line: bytes) -> None:
        """Print a request and handle it."""
        kind, *rest = line.decode("utf-8", "surrogateescape").split("@")
        fields = [kind.strip().upper(), *rest]
        if self.client is None and self._begin(fields):
            self.answered()
            return
        shown = [field.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for field in fields]
        print("client: ", shown, flush=True)
        try:
            self._serve(fields)
        except InvalidTopic as wrong:
            self.refuse(str(wrong))

    def _begin(self, fields: list[str]) -> bool:
        """Assign the connection to a client; returns False if the line is a request."""
        host, _, port = self.peer.rpartition(":")
        client = self.clients.get(fields[-1])
        match fields:
            case ["ALTERNATIVELY" | "PUSHES", _] if client is None:
                self.part(b"ERROR@there is no such client")
            case ["ALTERNATIVELY", _]:
                print("alternatively, ", (host, int(port)), flush=True)
                self._join(client)
                self.tell(b"alternatively")
            case ["PUSHES", _]:
                self._join(client)
                self._take_pushes()
                self.tell(b"pushes")
            case _:
                print("Connected by", (host, int(port)), flush=True)
                self._join(client := AtSignClient())
                self.clients[client.key] = client
                if fields != ["CLIENT"]:
                    self._take_pushes()
                    return False
                self.tell(b"client@" + client.key.encode())
        return True

    def _join(self, client: AtSignClient | None) -> None:
        assert client is not None
        self.client = client
        client.connections.append(self)

    def _take_pushes(self) -> None:
        """Subscribe to every message, so that `notify` can decide which ones the client receives."""
        assert self.client is not None
        self.client.pushes = self
        self.broker.subscribing.subscribe(Subscription(self.ensure_session(), b"#", 0), None, b"#")

    def _serve(self, fields: list[str]) -> None:
        client = self.client
        assert client is not None
        match fields:
            case ["CONNECT", *_]:
                self._reply("CONNACK")
            case ["PUBLISH", topic, contents] | ["PUBLISH", topic, contents, ""]:
                self._take_publish(client, topic, contents, retain=False)
            case ["PUBLISH", topic, contents, flag] if flag.lower() == "retain":
                self._take_publish(client, topic, contents, retain=True)
            case ["SUBSCRIBE", topic, *_]:
                self._take_subscribe(client, topic)
            case ["LIST", *_]:
                tree = self._database()
                print(tree, tree, sep="\n", flush=True)
                self._reply(f"LIST\n{tree}")
            case ["DISCONNECT", *_]:
                self.tell(b"DISCONNACK")
                self._leave_together()
            case _:
                self.refuse(EXPECTED)

    def _take_publish(self, client: AtSignClient, topic: str, contents: str, retain: bool) -> None:
        """Publish a message. A client is subscribed to the topics it publishes on."""
        if "*" in topic:
            raise InvalidTopic("a topic name must not contain wildcards")
        self._note_subscription(client, topic)
        name = topic.encode()
        refusal = self.broker.catalog.create(name)
        if refusal:
            self.refuse(refusal)
        else:
            payload = contents.encode("utf-8", "surrogateescape")
            self.ask(frames.frame("Publish", name, payload=payload, retain=retain))

    def _take_subscribe(self, client: AtSignClient, topic: str) -> None:
        """Subscribe to a topic: retained messages are sent first, then SUBACK."""
        self._note_subscription(client, topic)
        one = AtSignClient()
        one.pushes = client.pushes
        one.subscribe(topic)
        for name, payload in self._retained_payloads():
            one.notify(name, payload)
        self._reply("SUBACK")

    def _note_subscription(self, client: AtSignClient, topic: str) -> None:
        limits = self.broker.limits
        try:
            name = topic.encode()
        except UnicodeEncodeError:
            raise InvalidTopic("the topic is not UTF-8") from None
        check_topic(name, limits.max_topic_levels)
        if len(name) > MAX_TOPIC:
            raise InvalidTopic(f"a topic has at most {MAX_TOPIC} bytes")
        if client.count >= limits.max_subscriptions_per_client and not client.wants(topic):
            raise InvalidTopic("there are too many subscriptions")
        client.subscribe(topic)
        print("current subs:", client.subs, flush=True)

    def _database(self) -> dict[str, Level]:
        """Return the topics as nested dictionaries, in order of first use."""
        tree: dict[str, Level] = {}
        for topic in self.broker.catalog.created.values:
            place(tree, topic.decode(), "")
        for name, payload in self._retained_payloads():
            place(tree, name, "")[1] = payload.decode("utf-8", "replace")
        return tree

    def _retained_payloads(self) -> Iterator[tuple[str, bytes]]:
        """Yield the topics with a retained message, and its payload."""
        for found in self.broker.catalog.each(b"#"):
            if found is not None and found[1] is not None:
                yield found[0].decode(), found[1]

    def answer(self, line: Line, payload: bytes) -> None:
        """Deliver a message to the client, or translate the answer to its request."""
        match line.command:
            case "Message" if self.client is not None:
                self.client.notify(frames.unescape(line.words[0]).decode(), payload)
            case "PubAck":
                self._reply("PUBACK")
            case "Error" if self.busy:
                self.refuse(" ".join(word.decode("utf-8", "replace") for word in line.words[1:]))

    def _reply(self, text: str) -> None:
        """Answer a request, after the messages sent on the third connection."""
        if self.client is not None and self.client.pushes is not None:
            self.client.pushes.flush()
        self.tell(text.encode())
        self.answered()

    def refuse(self, text: str) -> None:
        self._reply(f"ERROR@{text}")

    def _leave_together(self) -> None:
        """Close all connections of the client."""
        client, self.client = self.client, None
        if client is None:
            return
        self.clients.pop(client.key, None)
        for one in client.connections:
            one.client = None
            one.leave(send_will=False)
            one.close()

    def lost(self) -> None:
        """Handle the end of this connection, and close the client's others."""
        super().lost()
        self._leave_together()
