"""A small access plug-in for tests: one user, one authentication method, and topics that are closed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyrite.broker.access import Accept, Access, Challenge, Credentials, Exchange, Refuse
from pyrite.protocols.mqtt.packets import Auth, Connect
from tests.support.core import Client, Core

METHOD = "ADD-ONE"


class AddOne(Exchange):
    """Challenges with a number and accepts the next number; refuses "no" at once."""

    def __init__(self, rounds: int, name: str) -> None:
        self.rounds = rounds
        self.name = name

    def step(self, data: bytes | None) -> Accept | Refuse | Challenge:
        if data == b"no":
            return Refuse(0x87, "it said no")
        if data == b"hello":
            return Challenge(b"1")
        if data != b"2":
            return Refuse()
        self.rounds -= 1
        return Challenge(b"1") if self.rounds else Accept(b"welcome", self.name)


class Guard(Access):
    """Accepts one user and one method, and allows topics that do not begin with a closed prefix."""

    checks_topics = True

    def __init__(self) -> None:
        self.asked: list[Credentials] = []
        self.published_by: list[str | None] = []
        self.exchanges = 0
        self.closed = self.closed_to_readers = "closed"

    def authenticate(self, credentials: Credentials) -> Accept | Refuse:
        self.asked.append(replace(credentials))  # the password is forgotten afterwards
        if credentials.username is None:
            return Accept()
        if (credentials.username, credentials.password) == ("ann", b"secret"):
            return Accept(username="ann")
        return Refuse(0x86, "who?")

    def begin(self, method: str, credentials: Credentials) -> Exchange | None:
        if method != METHOD:
            return None
        self.exchanges += 1
        return AddOne(2 if credentials.client_id == "twice" else 1, f"caller {self.exchanges}")

    def may_publish(self, credentials: Credentials, topic: str) -> bool:
        self.published_by.append(credentials.username)
        return not topic.startswith(self.closed)

    def may_subscribe(self, credentials: Credentials, topic_filter: str) -> bool:
        if topic_filter.startswith("caller"):
            return topic_filter == credentials.username
        return not topic_filter.startswith(self.closed_to_readers)


def hello(client_id: str = "c", data: bytes = b"hello", method: str = METHOD, **more: Any) -> Connect:
    properties = {"authentication_method": method, "authentication_data": data}
    return Connect(client_id, properties={**properties, **more})


def answer(data: bytes, reason: int = 0x18, method: str = METHOD) -> Auth:
    return Auth(reason, {"authentication_method": method, "authentication_data": data})


def let_in(core: Core, client_id: str = "c") -> Client:
    client = core.wire()
    client.send(hello(client_id))
    client.send(answer(b"2"))
    client.received()
    return client
