"""Subscribe and Unsubscribe commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyrite.broker.policy import Refusal
from pyrite.broker.subscriptions import Subscription
from pyrite.protocols.line.frames import FrameError, Line, line
from pyrite.storage.positions import Position, parse_position
from pyrite.topics.filters import InvalidTopic, check_filter, split_shared

if TYPE_CHECKING:
    from pyrite.protocols.line.connection import LineConnection


def subscribe(connection: LineConnection, asked: Line) -> None:
    """`Subscribe FILTER [ack] [latest] [from=POSITION]`."""
    broker, session = connection.broker, connection.ensure_session()
    key, group, topic_filter = _read_filter(connection, asked)
    options = asked.options(1, ("ack", "latest", "from"))
    start = read_position(connection, asked, options.get("from"))
    check(asked, broker.policy.refuse_subscribe(connection.credentials, topic_filter, start is not None))
    if (
        key not in session.subscriptions
        and len(session.subscriptions) >= broker.limits.max_subscriptions_per_client
    ):
        raise FrameError("full", "Subscribe: too many subscriptions")
    if key not in session.subscriptions:
        over_quota = broker.quotas.refusal(session.account, "subscriptions")
        if over_quota:
            raise FrameError("full", f"Subscribe: {over_quota}")
    latest = "latest" in options
    if latest and group is not None:
        raise FrameError("bad-option", "Subscribe: latest is not available for shared subscriptions")
    subscription = Subscription(session, topic_filter, 1 if "ack" in options and not latest else 0)
    subscription.latest = latest
    broker.subscribing.subscribe(subscription, group, key)

    at_once = True

    def granted() -> None:
        connection.say(line("SubAck", key))
        if group is None and start is None:
            connection.add_work(broker.subscribing.send_retained(subscription))
            if not at_once and not connection.interrupted:
                broker.turns.add(connection)

    connection.when_safe(granted)
    at_once = False
    if start is not None:
        broker.following.replay_from(key, subscription, start)


def unsubscribe(connection: LineConnection, asked: Line) -> None:
    """`Unsubscribe FILTER`."""
    session = connection.ensure_session()
    key, _, _ = _read_filter(connection, asked)
    asked.options(1, ())
    if not connection.broker.subscribing.unsubscribe(session, key):
        raise FrameError("no-subscription", f"Unsubscribe: no subscription to {key.decode()!r}")
    connection.when_safe(lambda: connection.say(line("Ack", "Unsubscribe", key)))


def _read_filter(connection: LineConnection, asked: Line) -> tuple[bytes, str | None, bytes]:
    """Return the validated filter as received, its shared group or None, and its topic filter."""
    key = asked.word(0, "a topic filter")
    try:
        key.decode()
    except UnicodeDecodeError:
        raise InvalidTopic("the topic filter is not UTF-8") from None
    group, topic_filter = split_shared(key)
    check_filter(topic_filter, connection.broker.limits.max_topic_levels)
    if group is not None and not connection.broker.journal.deals_to_groups:
        raise InvalidTopic("shared subscriptions are not available in a cluster: use a consumer (Register)")
    return key, group, topic_filter


def read_position(connection: LineConnection, asked: Line, text: str | None) -> Position | None:
    """Parse the position in a `from` option; return None if there is no such option."""
    if text is None:
        return None
    if not connection.broker.journal.streams:
        raise FrameError("no-log", f"{asked.command}: this broker keeps no log to replay")
    try:
        return parse_position(text)
    except ValueError as wrong:
        raise FrameError("bad-option", f"{asked.command}: from={text}: {wrong}") from None


def check(asked: Line, refusal: Refusal | None) -> None:
    """Raise FrameError if the broker's policy refuses a command."""
    if refusal is not None:
        code = "not-authorized" if refusal.is_unauthorized else "no-topic"
        raise FrameError(code, f"{asked.command}: {refusal.text}")
