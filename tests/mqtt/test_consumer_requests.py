"""Pull over MQTT 5, `$pyrite/consumers/NAME/ACTION`: whatever is asked, there is an answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyrite.broker import consumers
from pyrite.broker.access import Access, Credentials
from pyrite.broker.message import Batch
from pyrite.broker.pending import Place
from tests.support.core import Client
from tests.support.durable import Machine

Answer = tuple[list[bytes], dict[str, str]]


@pytest.fixture
def machine(folder: Path) -> Iterator[Machine]:
    machine = Machine(folder)
    yield machine
    machine.abandon()


@pytest.fixture
def client(machine: Machine) -> Client:
    return machine.core.connect("c")


def ask(client: Client, name: str, action: str, payload: bytes = b"") -> Answer:
    """Make a request; return the payloads that came but for the last, and what that said."""
    client.publish(f"$pyrite/consumers/{name}/{action}", payload, response_topic="answers")
    client.core.flush()
    messages = client.messages()
    assert messages, "there was no answer"
    return [one.payload for one in messages[:-1]], dict(messages[-1].properties["user_property"])


def test_an_existing_consumer_is_found_without_a_filter(client: Client) -> None:
    client.publish("a/1", b"one", qos=1)
    client.publish("b/1", b"other", qos=1)
    client.received()
    assert ask(client, "team", "create", b'{"filter": "a/#"}') == ([], {"pyrite-count": "0"})
    assert ask(client, "team", "create") == ([], {"pyrite-count": "0"})
    assert ask(client, "team", "fetch", b'{"count": 9}') == ([b"one"], {"pyrite-count": "1"})
    assert "with filter 'a/#'" in ask(client, "team", "create", b'{"filter": "#"}')[1]["pyrite-error"]
    assert ask(client, "everything", "create") == ([], {"pyrite-count": "0"})
    assert ask(client, "everything", "fetch", b'{"count": 9}')[0] == [b"one", b"other"]


def test_a_client_without_subscriptions_and_a_window_of_two_gets_all_answers(machine: Machine) -> None:
    client = machine.core.connect("slow", receive_maximum=2)
    for number in range(7):
        client.publish("a", b"%d" % number, qos=1)
    ask(client, "team", "create")
    client.publish("$pyrite/consumers/team/fetch", b"9", qos=1, response_topic="answers")
    client.core.flush()
    found: list[bytes] = []
    while came := client.finish():
        found += [one.payload for one in came]
    assert found == [*(b"%d" % number for number in range(7)), b""]


class OnlyB(Access):
    """Lets everyone pull what begins with b alone."""

    checks_topics = True

    def may_pull(self, credentials: Credentials, topic_filter: str) -> bool:
        """See above."""
        return topic_filter.startswith("b/")


def test_a_client_without_rights_does_not_learn_a_consumers_filter(client: Client) -> None:
    ask(client, "team", "create", b'{"filter": "a/secret"}')
    client.core.broker.access = OnlyB()
    for payload in (b'{"filter": "b/#"}', b'{"filter": "a/#"}', b""):
        error = ask(client, "team", "create", payload)[1]["pyrite-error"]
        assert "secret" not in error
    assert (
        "already exists with another filter"
        in ask(client, "team", "create", b'{"filter": "b/#"}')[1]["pyrite-error"]
    )


@pytest.mark.parametrize(
    ("action", "payload", "text"),
    [
        ("create", b'{"within": 1' + b"0" * 400 + b"}", "at most 604800 seconds"),
        ("create", b'{"within": NaN}', "within: expected more than 0"),
        ("create", b'{"within": 1e999}', "within: expected more than 0"),
        ("create", b'{"within": 0}', "more than 0"),
        ("create", b'{"within": true}', "a number of seconds"),
        ("create", b'{"filter": "\\ud800"}', "not UTF-8"),
        ("create", b'{"filter": "$share/g/x"}', "cannot be shared"),
        ("create", b'{"filter": 7}', "expected"),
        ("create", b"[" * 60_000, "too deep"),
        ("create", b"[]", "expected"),
        ("ack", b'["default:' + b"9" * 5_000 + b'"]', "is not a place"),
        ("ack", b"[[[]]]", "is not a place"),
        ("ack", b'["default:"]', "'default:' is not a place"),
        ("fetch", b'{"count": 1.5}', "a number from 1"),
        ("fetch", b"\xff", "not JSON"),
    ],
)
def test_an_invalid_request_is_answered_with_the_reason(
    client: Client, action: str, payload: bytes, text: str
) -> None:
    ask(client, "there", "create")
    name = "new" if action == "create" else "there"
    found, end = ask(client, name, action, payload)
    assert found == []
    assert text in end["pyrite-error"]
    assert not client.closed


def test_names_and_numbers_are_bounded(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "256 printable" in ask(client, "x" * 257, "create")[1]["pyrite-error"]
    monkeypatch.setattr(consumers, "MAX_CONSUMERS", 2)
    for name in ("one", "two", "one"):
        assert ask(client, name, "create") == ([], {"pyrite-count": "0"})
    assert ask(client, "three", "create") == ([], {"pyrite-error": "too many consumers"})


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["create", "fetch", "ack"]),
    st.one_of(
        st.binary(max_size=64),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["filter", "from", "within", "count", "places"]) | st.text(), inner
                )
            ),
            max_leaves=5,
        ).map(lambda value: json.dumps(value).encode()),
    ),
)
def test_every_request_is_answered(client: Client, action: str, payload: bytes) -> None:
    ask(client, "any", "create")
    _, end = ask(client, "any", action, payload)
    assert end.keys() == {"pyrite-count"} or end.keys() == {"pyrite-error"}
    assert not client.closed


def test_thousands_of_waiting_fetches_are_all_answered(client: Client) -> None:
    client.publish("a", b"one", qos=1)
    ask(client, "team", "create")
    team = client.core.broker.consumers["team"]
    found: list[int] = []

    def more(place: Place, batch: Batch) -> None:
        for _ in range(2_000):
            team.fetch(1, lambda place, batch: None, found.append)

    team.fetch(1, more, found.append)
    client.core.flush()
    assert found == [1] + [0] * 2_000
