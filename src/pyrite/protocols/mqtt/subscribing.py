"""SUBSCRIBE and UNSUBSCRIBE: handle one filter per step, and answer after the last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from pyrite.broker.subscriptions import Subscription
from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.packets import V5, Suback, Subscribe, Unsubscribe, Wish
from pyrite.protocols.mqtt.reasons import ProtocolError, Reason, describe
from pyrite.storage.positions import Position, parse_position
from pyrite.topics.filters import SHARE_PREFIX, InvalidTopic, check_filter, split_shared

if TYPE_CHECKING:
    from pyrite.protocols.mqtt.connection import Connection

BOOLEANS = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(("false", "0", "no", "off"), False)


class Extras(NamedTuple):
    """Extensions of SUBSCRIBE, given as user properties."""

    start: Position | None
    """`pyrite-from`: the position from which past messages are replayed first."""
    lossless: bool
    """`pyrite-lossless`: QoS 0 messages are sent later instead of dropped when there is no room."""
    wrong: str
    """Why the properties are refused, or an empty text."""


def subscribe(connection: Connection, packet: Subscribe) -> None:
    identifier = packet.properties.get("subscription_identifier")
    if identifier is not None and not connection.options.subscription_identifiers:
        raise ProtocolError(
            Reason.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED, "subscription identifiers are not available"
        )
    identifiers = () if identifier is None else (identifier,)
    extras = _read_extras(connection, packet)
    connection.add_work(_subscribe_in_steps(connection, packet, identifiers, extras))


def _subscribe_in_steps(
    connection: Connection, packet: Subscribe, identifiers: tuple[int, ...], extras: Extras
) -> Iterator[None]:
    reasons: list[int] = []
    wants_retained: list[Subscription] = []
    wants_past: list[tuple[bytes, Subscription]] = []
    text = extras.wrong
    for number, wish in enumerate(packet.wishes):
        if number:
            yield
        reason, subscription, why = _grant(connection, wish, identifiers, extras)
        text = text or why
        reasons.append(reason if connection.version == V5 or reason < 0x80 else 0x80)
        if subscription is not None and extras.start is not None:
            wants_past.append((wish.topic_filter, subscription))
        elif subscription is not None:
            wants_retained.append(subscription)
    answer = _results(connection, fields.SUBACK, packet.packet_id, reasons, text)

    def granted() -> None:
        connection.reply(answer)  # [MQTT-3.8.4-1], [MQTT-3.8.4-6]
        for subscription in wants_retained:
            connection.add_work(connection.broker.subscribing.send_retained(subscription))

    lasting = connection.session is not None and connection.session.lasting
    if lasting:
        _when_committed(connection, granted)
    else:
        connection.reply(answer)  # [MQTT-3.8.4-1], [MQTT-3.8.4-6]
    for key, subscription in wants_past:
        assert extras.start is not None
        connection.broker.following.replay_from(key, subscription, extras.start)
        yield
    if not lasting:
        for subscription in wants_retained:
            yield from connection.broker.subscribing.send_retained(subscription)


def _read_extras(connection: Connection, packet: Subscribe) -> Extras:
    start: Position | None = None
    lossless = False
    for name, value in packet.properties.get("user_property", ()):
        if name == "pyrite-lossless":
            if value.lower() not in BOOLEANS:
                return Extras(None, False, "pyrite-lossless: expected true or false")
            lossless = BOOLEANS[value.lower()]
        elif name == "pyrite-from":
            if start is not None:
                return Extras(None, lossless, "pyrite-from: expected once")
            if not connection.broker.journal.streams:
                return Extras(None, lossless, "this broker keeps no log to replay")
            if any(wish.topic_filter.startswith(SHARE_PREFIX) for wish in packet.wishes):
                return Extras(None, lossless, "pyrite-from: not available for shared subscriptions")
            try:
                start = parse_position(value)
            except ValueError as error:
                return Extras(None, lossless, f"pyrite-from: {error}")
    return Extras(start, lossless, "")


def _grant(
    connection: Connection, wish: Wish, identifiers: tuple[int, ...], extras: Extras
) -> tuple[int, Subscription | None, str]:
    """Subscribe to one filter.

    Return its reason code, the subscription if it wants earlier messages, and why the topic is unavailable.
    """
    broker, options, session = connection.broker, connection.options, connection.session
    assert session is not None
    if extras.wrong:
        return Reason.IMPLEMENTATION_SPECIFIC_ERROR, None, ""
    key = wish.topic_filter
    try:
        group, topic_filter = split_shared(key)
        check_filter(topic_filter, broker.limits.max_topic_levels)
    except InvalidTopic:
        return Reason.TOPIC_FILTER_INVALID, None, ""
    if group is not None and not (options.shared_subscriptions and broker.journal.deals_to_groups):
        return Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED, None, ""
    if not options.wildcard_subscriptions and (b"+" in topic_filter or b"#" in topic_filter):
        return Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED, None, ""
    refusal = broker.policy.refuse_subscribe(connection.credentials, topic_filter, extras.start is not None)
    if refusal is not None and refusal.is_unauthorized:
        return Reason.NOT_AUTHORIZED, None, ""
    if refusal is not None:
        return Reason.TOPIC_FILTER_INVALID, None, refusal.text
    subscriptions = session.subscriptions
    if key not in subscriptions and (
        len(subscriptions) >= broker.limits.max_subscriptions_per_client
        or broker.quotas.refusal(session.account, "subscriptions")
    ):
        return Reason.QUOTA_EXCEEDED, None, ""
    qos = min(wish.qos, options.maximum_qos)
    subscription = Subscription(
        session,
        topic_filter,
        qos,
        wish.no_local,
        wish.retain_as_published,
        wish.retain_handling,
        identifiers,
    )
    subscription.lossless = extras.lossless
    new = broker.subscribing.subscribe(subscription, group, key)
    # [MQTT-3.3.1-9] to [MQTT-3.3.1-11]; a shared subscription gets no retained messages (4.8.2).
    wants = wish.retain_handling == 0 or (wish.retain_handling == 1 and new) or extras.start is not None
    wants = wants and group is None
    return qos, subscription if wants else None, ""


def unsubscribe(connection: Connection, packet: Unsubscribe) -> None:
    connection.add_work(_unsubscribe_in_steps(connection, packet))


def _unsubscribe_in_steps(connection: Connection, packet: Unsubscribe) -> Iterator[None]:
    reasons: list[int] = []
    for number, key in enumerate(packet.filters):
        if number:
            yield
        assert connection.session is not None
        try:
            check_filter(split_shared(key)[1], connection.broker.limits.max_topic_levels)
        except InvalidTopic:
            reasons.append(Reason.TOPIC_FILTER_INVALID)
        else:
            existed = connection.broker.subscribing.unsubscribe(connection.session, key)
            reasons.append(Reason.SUCCESS if existed else Reason.NO_SUBSCRIPTION_EXISTED)
    answer = _results(connection, fields.UNSUBACK, packet.packet_id, reasons)
    _when_committed(connection, lambda: connection.reply(answer))  # [MQTT-3.10.4-4], -5


def _results(connection: Connection, kind: int, packet_id: int, reasons: list[int], text: str = "") -> Suback:
    worst = max(reasons)
    if worst < 0x80 or not connection.problem_information:  # [MQTT-3.1.2-29]
        return Suback(kind, packet_id, reasons)
    return Suback(kind, packet_id, reasons, {"reason_string": text or describe(worst)})


def _when_committed(connection: Connection, call: Callable[[], object]) -> None:
    """Call `call` once the change of the session is committed; at once if the session is not durable."""
    session = connection.session
    if session is None or not session.lasting:
        call()
        return

    def committed() -> None:
        if connection.session is session:
            call()
            if connection.backlog is not None and not connection.interrupted:
                connection.broker.turns.add(connection)

    connection.broker.journal.after(committed)
