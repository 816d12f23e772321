"""CONNECT and AUTH: authenticate the client, open its session, and answer with CONNACK."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyrite.broker.access import Accept, Challenge, Credentials, Exchange, Refuse
from pyrite.broker.admission import verdict_of
from pyrite.broker.message import Batch
from pyrite.broker.will import Will
from pyrite.protocols.mqtt.delivery import FORM_V5
from pyrite.protocols.mqtt.packets import V5, V31, V311, Auth, Connack, Connect, WillMessage
from pyrite.protocols.mqtt.reasons import ProtocolError, Reason, violation
from pyrite.protocols.mqtt.requests import REQUESTS
from pyrite.protocols.mqtt.shapes import check_response_topic, message_properties
from pyrite.protocols.states import AUTHENTICATING, CONNECTED
from pyrite.topics.filters import InvalidTopic, check_topic

if TYPE_CHECKING:
    from pyrite.broker.accounts import Account
    from pyrite.broker.journal import Fault
    from pyrite.protocols.mqtt.connection import Connection

KEEP_ALIVE_GRACE = 1.5
VERSIONS = {V31: "MQTT 3.1", V311: "MQTT 3.1.1", V5: "MQTT 5"}


def peek_version(connection: Connection, body: bytes) -> None:
    """Read the protocol version, so that even a malformed CONNECT is answered in the client's version."""
    name_end = 2 + int.from_bytes(body[:2], "big")
    level = body[name_end] if name_end < len(body) else V311
    if body[2:name_end] == b"MQTT" and level >= V5:
        connection.version = V5
    elif body[2:name_end] == b"MQIsdp" and level == V31:
        connection.version = V31


def connect(connection: Connection, packet: Connect) -> None:
    """Authenticate the client, in one step or by an exchange of AUTH packets, and accept or refuse it."""
    broker = connection.broker
    connection.version = packet.version
    if packet.version == V5:
        connection.form = FORM_V5
        connection.max_packet = packet.properties.get("maximum_packet_size", connection.max_packet)
        connection.problem_information = bool(packet.properties.get("request_problem_information", 1))
    if "authentication_data" in packet.properties and "authentication_method" not in packet.properties:
        raise violation("authentication data without a method")  # 3.1.2.11.10
    client_id = packet.client_id
    if not client_id:
        if packet.version == V31 or (packet.version == V311 and not packet.clean_start):
            connection.refuse(Reason.CLIENT_IDENTIFIER_NOT_VALID, "")  # [MQTT-3.1.3-8] of 3.1.1
            return
        client_id = broker.sessions.new_client_id()  # [MQTT-3.1.3-6]
    credentials = connection.credentials
    credentials.client_id = client_id
    credentials.username = packet.username
    credentials.password = packet.password
    if packet.will is not None:
        _check_will(connection, packet.will)
    if client_id not in broker.sessions.by_id and len(broker.sessions.by_id) >= broker.limits.max_sessions:
        connection.refuse(Reason.QUOTA_EXCEEDED, "too many sessions")
        return
    connection.connect = packet
    method = connection.method = packet.properties.get("authentication_method")
    if method is None:
        connection.identify(partial(_decided, connection))
        return
    connection.exchange = broker.access.begin(method, connection.credentials)
    if connection.exchange is None:
        connection.refuse(
            Reason.BAD_AUTHENTICATION_METHOD, f"unknown authentication method {method!r}"
        )  # [MQTT-4.12.0-1]
        return
    connection.state = AUTHENTICATING
    _step(connection, connection.exchange, packet.properties.get("authentication_data"))


def auth(connection: Connection, packet: Auth) -> None:
    """Continue the authentication, or begin a re-authentication."""
    method = connection.method
    if method is None or packet.properties.get("authentication_method") != method:
        raise violation("AUTH with a different method than CONNECT")  # [MQTT-4.12.0-5]
    if packet.reason == Reason.REAUTHENTICATE:
        if connection.session is None or connection.exchange is not None:
            raise violation("re-authentication before authentication is complete")
        connection.exchange = connection.broker.access.begin(method, connection.credentials)
    elif packet.reason != Reason.CONTINUE_AUTHENTICATION:
        raise violation("the reason code of a client's AUTH must be 0x18 or 0x19")
    if connection.exchange is None:
        raise violation("AUTH without an authentication in progress")
    _step(connection, connection.exchange, packet.properties.get("authentication_data"))


def _step(connection: Connection, exchange: Exchange, data: bytes | None) -> None:
    """Take the next step of an authentication exchange, unless the client has failed too often."""
    admission, who = connection.broker.admission, connection.credentials
    verdict: Accept | Refuse | Challenge | None = admission.too_many(who)
    if verdict is None:
        verdict = verdict_of(partial(exchange.step, data), data, (Accept, Refuse, Challenge))
        verdict = admission.judged(who, verdict)
    _decided(connection, verdict)


def _decided(connection: Connection, verdict: Accept | Refuse | Challenge) -> None:
    connected = connection.session is not None
    method = connection.method
    match verdict:
        case Challenge(data):
            connection.reply(Auth(Reason.CONTINUE_AUTHENTICATION, _authentication(method, data)))
        case Refuse(code, reason):
            connection.exchange = None
            if connected:
                connection.fail(Reason(code), reason or "re-authentication failed")  # [MQTT-4.12.1-2]
            else:
                connection.refuse(Reason(code), reason)
        case Accept(data, username):
            connection.keep_term(verdict)
            connection.exchange = None
            if connected:
                who = connection.credentials
                who.become(verdict if username is not None else replace(verdict, username=who.username))
                assert connection.session is not None
                connection.rights_changed()
                connection.broker.sessions.own(connection.session, connection.broker.quotas.account_of(who))
                connection.add_work(_prune(connection, _authentication(method, data)))
            else:
                connection.credentials.become(verdict)
                assert connection.connect is not None
                then = partial(_claimed, connection, _authentication(method, data))
                connection.claim(connection.connect.clean_start, then)


def _claimed(connection: Connection, properties: dict[str, Any], fault: Fault | None) -> None:
    if fault is None:
        _accept(connection, properties)
    else:
        connection.refuse(Reason.SERVER_UNAVAILABLE, fault.text)


def _prune(connection: Connection, properties: dict[str, Any]) -> Iterator[None]:
    """Take the rights away that a client has lost by its new authentication, then confirm it."""
    assert connection.session is not None
    yield from connection.broker.subscribing.prune(connection.session, connection.credentials)
    connection.reply(Auth(Reason.SUCCESS, properties))


def _authentication(method: str | None, data: bytes | None) -> dict[str, Any]:
    if method is None:
        return {}
    return {"authentication_method": method} | ({} if data is None else {"authentication_data": data})


def _check_will(connection: Connection, will: WillMessage) -> None:
    broker, options = connection.broker, connection.options
    try:
        check_topic(will.topic, broker.limits.max_topic_levels)
    except InvalidTopic as error:
        raise ProtocolError(Reason.TOPIC_NAME_INVALID, f"the will's topic: {error}") from None
    check_response_topic(will.properties)
    if will.qos > options.maximum_qos:
        raise ProtocolError(Reason.QOS_NOT_SUPPORTED, "the will's QoS exceeds the maximum")  # [MQTT-3.2.2-12]
    if will.retain and not options.retain_available:
        raise ProtocolError(
            Reason.RETAIN_NOT_SUPPORTED, "retained messages are not available"
        )  # [MQTT-3.2.2-13]
    if will.topic.startswith(REQUESTS):
        raise ProtocolError(
            Reason.TOPIC_NAME_INVALID, "a will cannot be a request: its topic begins with $pyrite/"
        )
    if options.check_payload_format and will.properties.get("payload_format"):
        try:
            will.payload.decode()
        except UnicodeDecodeError:
            raise ProtocolError(
                Reason.PAYLOAD_FORMAT_INVALID, "the will's payload is declared as UTF-8, but is not"
            ) from None


def _accept(connection: Connection, properties: dict[str, Any]) -> None:
    """Open the client's session, and send CONNACK; for a session with many subscriptions, in turns."""
    broker, packet = connection.broker, connection.connect
    assert packet is not None
    connection.connect = None
    client_id = connection.credentials.client_id
    if packet.will is not None:
        will = packet.will
        refused = broker.policy.refuse_publish(connection.credentials, will.topic, will.qos)
        if refused is not None:
            reason = Reason.NOT_AUTHORIZED if refused.is_unauthorized else Reason.TOPIC_NAME_INVALID
            connection.refuse(reason, f"the will's topic: {refused.text}")
            return
    account = broker.quotas.account_of(connection.credentials)
    refusal = broker.quotas.session_refusal(account, client_id)
    if refusal:
        connection.refuse(Reason.QUOTA_EXCEEDED, refusal)
    elif broker.subscribing.takes_long_to_prune(client_id) and not packet.clean_start:
        connection.add_work(_take_over(connection, packet, account, properties))
    else:
        _open(connection, packet, account, properties)


def _take_over(
    connection: Connection, packet: Connect, account: Account | None, properties: dict[str, Any]
) -> Iterator[None]:
    is_first = yield from connection.broker.sessions.take_over(connection.credentials)
    if is_first:
        _open(connection, packet, account, properties, is_pruned=True)
    else:
        connection.refuse(Reason.SERVER_BUSY, "another connection has taken over this client id")


def _open(
    connection: Connection,
    packet: Connect,
    account: Account | None,
    properties: dict[str, Any],
    is_pruned: bool = False,
) -> None:
    broker, options, limits = connection.broker, connection.options, connection.broker.limits
    asked = packet.properties
    client_id = connection.credentials.client_id
    before = broker.sessions.by_id.get(client_id)
    lasted = before is not None and before.lasting
    session, present = broker.sessions.open(client_id, packet.clean_start, account)
    if not is_pruned:
        broker.subscribing.prune_at_once(session, connection.credentials)
    broker.sessions.set_expiry(session, _session_expiry(packet, options.max_session_expiry))
    if packet.will is not None:
        session.will = _will(packet.will, connection.credentials)
    else:
        session.will = None
    connection.session = session
    connection.state = CONNECTED
    window = min(limits.max_inflight, asked.get("receive_maximum", limits.max_inflight))  # [MQTT-3.3.4-9]
    broker.sessions.attached(session, connection, window)
    keep_alive = _start_keep_alive(connection, packet)
    if packet.version == V5:
        connection.max_aliases = asked.get("topic_alias_maximum", 0) if options.use_topic_aliases else 0
        if connection.max_aliases:
            connection.aliases = {}
        properties = properties | _capabilities(connection, packet, client_id, session.expiry, keep_alive)
    if packet.version != V5:
        connection.reply(Connack(0, present and packet.version != V31))
    elif not connection.reply(Connack(Reason.SUCCESS, present, properties)):
        session.will = None
        connection.close()  # CONNACK must be the first packet [MQTT-3.2.0-1], and is too large
        return
    if session.lasting or lasted or connection.meter is not None or session.will is not None:
        connection.wait_for_journal()  # until the session is committed
    connection.tell_connected(VERSIONS[packet.version], present)
    session.resume(broker.policy.reading_rights(session, connection.credentials))


def _session_expiry(packet: Connect, maximum: int) -> int:
    if packet.version == V5:
        asked: int = packet.properties.get("session_expiry", 0)
        return min(asked, maximum)
    return 0 if packet.clean_start else maximum


def _will(will: WillMessage, author: Credentials) -> Will:
    delay = will.properties.get("will_delay", 0)
    values = {name: value for name, value in will.properties.items() if name != "will_delay"}
    properties = message_properties(values) if values else None
    batch = Batch(will.topic, will.payload, will.qos, will.retain, properties, origin=author.client_id)
    return Will(batch, delay, author)


def _start_keep_alive(connection: Connection, packet: Connect) -> int:
    """Start the keep-alive timer, and return the effective keep-alive in seconds."""
    broker = connection.broker
    keep_alive = packet.keep_alive
    longest = connection.options.server_keep_alive
    if longest and packet.version == V5 and (keep_alive == 0 or keep_alive > longest):
        keep_alive = longest
    connection.keep_alive = keep_alive * KEEP_ALIVE_GRACE
    if keep_alive:
        broker.timers.set(connection, broker.now + connection.keep_alive)
    else:
        broker.timers.cancel(connection)
    return keep_alive


def _capabilities(
    connection: Connection, packet: Connect, client_id: str, expiry: int, keep_alive: int
) -> dict[str, Any]:
    """Return the CONNACK properties that differ from MQTT's defaults."""
    options, limits = connection.options, connection.broker.limits
    capabilities: dict[str, Any] = {"maximum_packet_size": limits.max_packet_size}
    if expiry != packet.properties.get("session_expiry", 0):
        capabilities["session_expiry"] = expiry
    if limits.receive_maximum != 65_535:
        capabilities["receive_maximum"] = limits.receive_maximum
    if options.maximum_qos < 2:
        capabilities["maximum_qos"] = options.maximum_qos  # [MQTT-3.2.2-9]
    if not packet.client_id:
        capabilities["assigned_client_id"] = client_id  # [MQTT-3.2.2-16]
    if options.topic_alias_maximum:
        capabilities["topic_alias_maximum"] = options.topic_alias_maximum
    if keep_alive != packet.keep_alive:
        capabilities["server_keep_alive"] = keep_alive  # [MQTT-3.2.2-21]
    if options.response_information and packet.properties.get("request_response_information"):
        capabilities["response_information"] = options.response_information  # [MQTT-3.1.2-28]
    for name, available in (
        ("retain_available", options.retain_available),
        ("wildcard_subscription_available", options.wildcard_subscriptions),
        ("subscription_identifier_available", options.subscription_identifiers),
        (
            "shared_subscription_available",
            options.shared_subscriptions and connection.broker.journal.deals_to_groups,
        ),
    ):
        if not available:
            capabilities[name] = 0
    return capabilities
