"""An authenticator for the suite: names and methods that say what is to happen to them."""

from __future__ import annotations

from pyrite.broker.access import Accept, Access, Challenge, Credentials, Exchange, Refuse


class Password(Exchange):
    """Asks for a password in a second step; refuses any but `right`."""

    def __init__(self) -> None:
        self.asked = False

    def step(self, data: bytes | None) -> Accept | Refuse | Challenge:
        if not self.asked:
            self.asked = True
            return Challenge(b"password?")
        return Accept(data=b"welcome") if data == b"right" else Refuse(0x87, "that is not the password")


class Ticket(Exchange):
    """Decides on the first message."""

    def step(self, data: bytes | None) -> Accept | Refuse | Challenge:
        return Accept() if data == b"right" else Refuse(0x86, "that is not the ticket")


class Gatekeeper(Access):
    """Refuses by user name or client identifier; keeps everyone off topics with a level `private`."""

    limits_log_ins = False
    checks_topics = True

    def authenticate(self, credentials: Credentials) -> Accept | Refuse:
        if credentials.client_id.startswith("unwanted"):
            return Refuse(0x85, "no such clients here")
        if credentials.username == "banned":
            return Refuse(0x87, "you are not allowed to connect to this broker")
        if credentials.username == "user" and credentials.password != b"right":
            return Refuse(0x86, "that is not the password")
        return Accept(username=credentials.username)

    def begin(self, method: str, credentials: Credentials) -> Exchange | None:
        return {"password": Password, "ticket": Ticket}.get(method, lambda: None)()

    def may_publish(self, credentials: Credentials, topic: str) -> bool:
        return "private" not in topic.split("/")

    def may_subscribe(self, credentials: Credentials, topic_filter: str) -> bool:
        return "private" not in topic_filter.split("/")


def make_access() -> Access:
    return Gatekeeper()
