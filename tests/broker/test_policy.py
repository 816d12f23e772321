"""The policy: identity first, then access rules, then the topic policy; strangers are told no topics."""

from __future__ import annotations

import pytest

from pyrite.broker.access import Accept, Access, Credentials, Refuse
from pyrite.broker.catalog import TopicOptions
from pyrite.broker.core import Broker
from pyrite.protocols.mqtt.packets import V5, V311, Connect, Subscribe, WillMessage, Wish
from tests.line.client import LineClient
from tests.line.test_connection import texts
from tests.support.core import Core

LISTED = TopicOptions("listed", ["hidden", "open"])


class Users(Access):
    """Accepts ann and bob; both may use `open` and `absent`, and no other topic."""

    checks_topics = True

    def authenticate(self, credentials: Credentials) -> Accept | Refuse:
        if credentials.username in ("ann", "bob") and credentials.password == b"secret":
            return Accept(username=credentials.username)
        return Refuse(0x86, "wrong name or password")

    def may_publish(self, credentials: Credentials, topic: str) -> bool:
        return topic in ("open", "absent")

    def may_subscribe(self, credentials: Credentials, topic_filter: str) -> bool:
        return topic_filter in ("open", "absent")


@pytest.fixture
def core() -> Core:
    return Core(access=Users(), topics=LISTED)


def ann(is_accepted: bool = True) -> Credentials:
    return Credentials("c", "ann", None, "::1", is_accepted=is_accepted)


def test_a_client_that_has_not_logged_in_is_refused_everything() -> None:
    policy = Broker(access=Users(), topics=LISTED).policy
    stranger = ann(is_accepted=False)
    for refusal in (
        policy.refuse_publish(stranger, b"open"),
        policy.refuse_subscribe(stranger, b"open"),
        policy.refuse_pull(stranger, b"open"),
        policy.refuse_consumer(stranger, b"open"),
        policy.refuse_list(stranger, b"open"),
        policy.refuse_admin(stranger, b"open"),
        policy.refuse_everywhere(stranger, ["pull"]),
    ):
        assert refusal == ("not authorized: log in first", True)


def test_a_client_needs_no_log_in_where_every_client_is_accepted() -> None:
    policy = Broker(topics=LISTED).policy
    assert policy.refuse_publish(ann(is_accepted=False), b"open") is None


def test_a_missing_right_is_told_before_a_missing_topic() -> None:
    policy = Broker(access=Users(), topics=LISTED).policy
    refused = policy.refuse_publish(ann(), b"unlisted")
    assert refused == ("not authorized: publish 'unlisted'", True)
    refused = policy.refuse_publish(ann(), b"absent")
    assert refused == ("there is no topic 'absent' here; allowed topics: hidden, open", False)
    refused = policy.refuse_subscribe(ann(), b"unlisted")
    assert refused == ("not authorized: subscribe 'unlisted'", True)
    refused = policy.refuse_consumer(ann(), b"unlisted")
    assert refused == ("not authorized: pull 'unlisted'", True)


def test_only_the_broker_publishes_on_sys() -> None:
    refusal = Broker().policy.refuse_publish(ann(), b"$SYS/x")
    assert refusal is not None
    assert refusal.is_unauthorized


def test_replaying_needs_the_right_to_pull() -> None:
    class Live(Access):
        checks_topics = True

        def may_pull(self, credentials: Credentials, topic_filter: str) -> bool:
            return False

    policy = Broker(access=Live()).policy
    assert policy.refuse_subscribe(ann(), b"a") is None
    assert policy.refuse_subscribe(ann(), b"a", replays=True) == ("not authorized: pull 'a'", True)


@pytest.mark.parametrize("version", [V5, V311])
def test_a_refused_log_in_with_a_will_tells_no_topic(core: Core, version: int) -> None:
    wire = core.wire()
    will = WillMessage(b"unlisted", b"x", 0, False, {})
    wire.send(Connect("c", version, username="ann", password=b"guessed", will=will))
    sent = bytes(wire.transport.written)
    assert sent[3] == (0x86 if version == V5 else 4)
    assert b"hidden" not in sent
    assert wire.closed


def test_a_will_without_the_right_to_publish_tells_no_topic(core: Core) -> None:
    wire = core.wire()
    will = WillMessage(b"unlisted", b"x", 0, False, {})
    wire.send(Connect("c", username="ann", password=b"secret", will=will))
    sent = bytes(wire.transport.written)
    assert sent[3] == 0x87
    assert b"hidden" not in sent


def test_a_subscribe_without_the_right_tells_no_topic(core: Core) -> None:
    client = core.wire()
    client.send(Connect("c", username="ann", password=b"secret"))
    client.received()
    client.transport.written.clear()
    client.send(Subscribe(1, [Wish(b"unlisted", 0)], {}))
    sent = bytes(client.transport.written)
    assert sent[-1] == 0x87
    assert b"hidden" not in sent


def test_a_line_publish_and_subscribe_without_the_right_tell_no_topic(core: Core) -> None:
    client = LineClient(core)
    assert texts(client.say("Connect x user=ann password=secret")) == ["Ack Connect x new"]
    assert texts(client.say("Publish unlisted 1", "x", "Subscribe unlisted")) == [
        "Error not-authorized Publish: not authorized: publish 'unlisted'",
        "Error not-authorized Subscribe: not authorized: subscribe 'unlisted'",
    ]
