"""One table of packets on the wire, shared by tests of the codec, tests of the broker, and the fuzzer.

A case is written in a readable notation that is independent of the codec under test:

    10 ( "MQTT" 05 02 003C ( 11 0000000A ) "a" )

Pairs of hex digits are bytes. "text" is a string with its length of two bytes before it, 'text' the bare
characters. ( ) puts the length of what is inside before it, as a variable byte integer: so it stands for a
whole packet after its first byte, and for properties.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.packets import (
    V5,
    V31,
    V311,
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Ping,
    Publish,
    Suback,
    Subscribe,
    Unsubscribe,
    WillMessage,
    Wish,
)
from pyrite.protocols.mqtt.reasons import Reason

TO_SERVER, TO_CLIENT, BOTH = "to the server", "to the client", "both ways"

_TOKEN = re.compile(r"\s*(?:\"([^\"]*)\"|'([^']*)'|([()])|((?:[0-9A-F]{2})+))")


def wire(notation: str) -> bytes:
    """Return the bytes of a notation."""
    open_parts: list[bytearray] = [bytearray()]
    at = 0
    while at < len(notation.rstrip()):
        token = _TOKEN.match(notation, at)
        assert token is not None, f"{notation[at:]!r} in {notation!r}"
        at = token.end()
        string, text, bracket, digits = token.groups()
        if string is not None:
            encoded = string.encode()
            open_parts[-1] += len(encoded).to_bytes(2, "big") + encoded
        elif text is not None:
            open_parts[-1] += text.encode()
        elif digits is not None:
            open_parts[-1] += bytes.fromhex(digits)
        elif bracket == "(":
            open_parts.append(bytearray())
        else:
            inside = open_parts.pop()
            open_parts[-1] += _varint(len(inside)) + inside
    (whole,) = open_parts
    return bytes(whole)


def _varint(value: int) -> bytes:
    out = bytearray()
    while True:
        value, low = divmod(value, 128)
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)


@dataclass(frozen=True)
class Case:
    """Bytes, with the packet that they encode or the reason for which they are refused."""

    name: str
    version: int
    direction: str
    notation: str
    says: Packet | Reason
    canonical: bool = True
    """Whether the packet is encoded as just these bytes (there may be a shorter form)."""
    codec: bool = True
    """Whether the codec alone can tell; what depends on the connection, the broker tells."""

    @property
    def data(self) -> bytes:
        """The bytes."""
        return wire(self.notation)

    def __str__(self) -> str:
        return f"v{self.version}-{self.name.replace(' ', '-')}"


ALL_MESSAGE_PROPERTIES = {
    "payload_format": 1,
    "message_expiry": 60,
    "content_type": "text/plain",
    "response_topic": "r/t",
    "correlation_data": b"\x00\xff",
    "user_property": [("k", "v"), ("k", "w")],
}
ALL_MESSAGE_PROPERTIES_WIRE = """
    01 01  02 0000003C  03 "text/plain"  08 "r/t"  09 0002 00FF  26 "k" "v"  26 "k" "w"
"""

CONNECTS = [
    Case("plain connect", V5, TO_SERVER, '10 ( "MQTT" 05 02 003C ( ) "a" )', Connect("a", V5, True, 60)),
    Case("connect without id", V5, TO_SERVER, '10 ( "MQTT" 05 02 0000 ( ) "" )', Connect("", V5)),
    Case("connect that resumes", V5, TO_SERVER, '10 ( "MQTT" 05 00 0000 ( ) "a" )', Connect("a", V5, False)),
    Case(
        "connect with everything",
        V5,
        TO_SERVER,
        f"""10 ( "MQTT" 05 F6 FFFF
            ( 11 0000000A  15 "PLAIN"  16 0003 'abc'  17 00  19 01  21 0014  22 000A  26 "k" "v"
              26 "" ""  27 00010000 )
            "client"
            ( 18 00000005 {ALL_MESSAGE_PROPERTIES_WIRE} ) "w/t" 0003 'bye'
            "user" 0004 'pass' )""",
        Connect(
            "client",
            V5,
            True,
            65535,
            WillMessage(b"w/t", b"bye", 2, True, {"will_delay": 5, **ALL_MESSAGE_PROPERTIES}),
            "user",
            b"pass",
            {
                "session_expiry": 10,
                "authentication_method": "PLAIN",
                "authentication_data": b"abc",
                "request_problem_information": 0,
                "request_response_information": 1,
                "receive_maximum": 20,
                "topic_alias_maximum": 10,
                "user_property": [("k", "v"), ("", "")],
                "maximum_packet_size": 65536,
            },
        ),
    ),
    Case(
        "connect with a will of QoS 1",
        V5,
        TO_SERVER,
        '10 ( "MQTT" 05 0E 0000 ( ) "a" ( ) "w" 0000 )',
        Connect("a", V5, will=WillMessage(b"w", b"", 1)),
    ),
    Case(
        "connect with a password only",
        V5,
        TO_SERVER,
        '10 ( "MQTT" 05 42 0000 ( ) "a" 0002 00FF )',
        Connect("a", V5, password=b"\x00\xff"),
    ),
    Case(
        "connect with an id of many scripts",
        V5,
        TO_SERVER,
        '10 ( "MQTT" 05 02 0000 ( ) "Aªß水🜚" )',
        Connect("Aªß水🜚", V5),
    ),
    Case("plain connect", V311, TO_SERVER, '10 ( "MQTT" 04 02 003C "a" )', Connect("a", V311, True, 60)),
    Case(
        "connect with everything",
        V311,
        TO_SERVER,
        '10 ( "MQTT" 04 EC 000A "a" "w/t" 0003 \'bye\' "user" 0004 \'pass\' )',
        Connect("a", V311, False, 10, WillMessage(b"w/t", b"bye", 1, True), "user", b"pass"),
    ),
    Case("plain connect", V31, TO_SERVER, '10 ( "MQIsdp" 03 02 003C "a" )', Connect("a", V31, True, 60)),
]

CONNACKS = [
    Case("connack", V5, TO_CLIENT, "20 ( 00 00 ( ) )", Connack()),
    Case("connack of a session", V5, TO_CLIENT, "20 ( 01 00 ( ) )", Connack(0, True)),
    Case(
        "connack with everything",
        V5,
        TO_CLIENT,
        """20 ( 00 00
            ( 11 00000001  12 "id"  13 000A  15 "M"  16 0001 FF  1A "info"  1C "other"  1F "why"  21 0001
              22 0002  24 01  25 00  26 "k" "v"  27 00000003  28 00  29 00  2A 00 ) )""",
        Connack(
            0,
            False,
            {
                "session_expiry": 1,
                "assigned_client_id": "id",
                "server_keep_alive": 10,
                "authentication_method": "M",
                "authentication_data": b"\xff",
                "response_information": "info",
                "server_reference": "other",
                "reason_string": "why",
                "receive_maximum": 1,
                "topic_alias_maximum": 2,
                "maximum_qos": 1,
                "retain_available": 0,
                "user_property": [("k", "v")],
                "maximum_packet_size": 3,
                "wildcard_subscription_available": 0,
                "subscription_identifier_available": 0,
                "shared_subscription_available": 0,
            },
        ),
    ),
    Case("connack that refuses", V5, TO_CLIENT, "20 ( 00 87 ( ) )", Connack(0x87)),
    Case("connack", V311, TO_CLIENT, "20 ( 00 00 )", Connack()),
    Case("connack of a session", V311, TO_CLIENT, "20 ( 01 00 )", Connack(0, True)),
    Case("connack that refuses", V311, TO_CLIENT, "20 ( 00 05 )", Connack(5)),
    Case("connack with reserved flags", V5, TO_CLIENT, "20 ( 02 00 ( ) )", Reason.MALFORMED_PACKET),
    Case("connack with reserved flags", V311, TO_CLIENT, "20 ( 80 00 )", Reason.MALFORMED_PACKET),
]

PUBLISHES = [
    Case("publish", V5, BOTH, "30 ( \"a/b\" ( ) 'hello' )", Publish(b"a/b", b"hello")),
    Case("publish of nothing", V5, BOTH, '30 ( "a/b" ( ) )', Publish(b"a/b")),
    Case("publish retained", V5, BOTH, "31 ( \"a/b\" ( ) 'x' )", Publish(b"a/b", b"x", retain=True)),
    Case("publish with QoS 1", V5, BOTH, "32 ( \"a\" 0001 ( ) 'x' )", Publish(b"a", b"x", 1, packet_id=1)),
    Case(
        "publish with QoS 2 again",
        V5,
        BOTH,
        "3D ( \"a\" FFFF ( ) 'x' )",
        Publish(b"a", b"x", 2, True, True, 65535),
    ),
    Case(
        "publish with everything",
        V5,
        TO_SERVER,
        f"34 ( \"a\" 000A ( {ALL_MESSAGE_PROPERTIES_WIRE} 23 0001 ) 'x' )",
        Publish(b"a", b"x", 2, packet_id=10, properties={**ALL_MESSAGE_PROPERTIES, "topic_alias": 1}),
    ),
    Case(
        "publish with subscription identifiers",
        V5,
        TO_CLIENT,
        "30 ( \"a\" ( 0B 01 0B FFFFFF7F ) 'x' )",
        Publish(b"a", b"x", properties={"subscription_identifier": [1, 268_435_455]}),
    ),
    Case(
        "publish of 16383 bytes in all",
        V5,
        BOTH,
        f"30 ( \"a\" ( ) '{'x' * 16379}' )",
        Publish(b"a", b"x" * 16379),
    ),
    Case("publish of 128 bytes", V311, BOTH, f"30 ( \"a\" '{'x' * 125}' )", Publish(b"a", b"x" * 125)),
    Case("publish", V311, BOTH, "30 ( \"a/b\" 'hello' )", Publish(b"a/b", b"hello")),
    Case(
        "publish with QoS 1", V311, BOTH, "3B ( \"a\" 0102 'x' )", Publish(b"a", b"x", 1, True, True, 0x0102)
    ),
    Case("publish with QoS 2", V311, BOTH, '34 ( "a" 0001 )', Publish(b"a", b"", 2, packet_id=1)),
    Case("publish", V31, BOTH, "30 ( \"a/b\" 'hello' )", Publish(b"a/b", b"hello")),
]

WRONG_PUBLISHES = [
    Case("QoS 3", V5, BOTH, '36 ( "a" 0001 ( ) )', Reason.MALFORMED_PACKET),
    Case("QoS 3", V311, BOTH, '36 ( "a" 0001 )', Reason.MALFORMED_PACKET),
    Case("DUP with QoS 0", V5, BOTH, '38 ( "a" ( ) )', Reason.MALFORMED_PACKET),
    Case("DUP with QoS 0", V311, BOTH, '38 ( "a" )', Reason.MALFORMED_PACKET),
    Case("publish with id 0", V5, BOTH, '32 ( "a" 0000 ( ) )', Reason.PROTOCOL_ERROR),
    Case("publish with id 0", V311, BOTH, '34 ( "a" 0000 )', Reason.PROTOCOL_ERROR),
    Case("publish without anything", V5, BOTH, "30 ( )", Reason.MALFORMED_PACKET),
    Case("publish cut in the topic's length", V5, BOTH, "30 ( 00 )", Reason.MALFORMED_PACKET),
    Case("publish cut in the topic", V5, BOTH, "30 ( 0003 'ab' )", Reason.MALFORMED_PACKET),
    Case("publish cut in the topic", V311, BOTH, "30 ( 0003 'ab' )", Reason.MALFORMED_PACKET),
    Case("publish cut in the id", V5, BOTH, '32 ( "a" 00 )', Reason.MALFORMED_PACKET),
    Case("publish cut in the id", V311, BOTH, '32 ( "a" 00 )', Reason.MALFORMED_PACKET),
    Case("publish without properties", V5, BOTH, '30 ( "a" )', Reason.MALFORMED_PACKET),
    Case("properties longer than the packet", V5, BOTH, '30 ( "a" 02 01 )', Reason.MALFORMED_PACKET),
    Case(
        "property longer than the properties",
        V5,
        BOTH,
        "30 ( \"a\" 02 03 00 'xxxxx' )",
        Reason.MALFORMED_PACKET,
    ),
    Case("property that does not exist", V5, BOTH, '30 ( "a" ( 7F 00 ) )', Reason.MALFORMED_PACKET),
    Case("property number 0", V5, BOTH, '30 ( "a" ( 00 00 ) )', Reason.MALFORMED_PACKET),
    Case("property number overlong", V5, BOTH, '30 ( "a" ( 81 00 01 ) )', Reason.MALFORMED_PACKET),
    Case("property of another packet", V5, BOTH, '30 ( "a" ( 11 00000001 ) )', Reason.MALFORMED_PACKET),
    Case("will delay in publish", V5, BOTH, '30 ( "a" ( 18 00000001 ) )', Reason.MALFORMED_PACKET),
    Case("property length overlong", V5, BOTH, '30 ( "a" 80 00 )', Reason.MALFORMED_PACKET),
    Case("property length of five bytes", V5, BOTH, '30 ( "a" 80 80 80 80 01 )', Reason.MALFORMED_PACKET),
    Case("payload format 2", V5, BOTH, '30 ( "a" ( 01 02 ) )', Reason.PROTOCOL_ERROR),
    Case("payload format twice", V5, BOTH, '30 ( "a" ( 01 00 01 00 ) )', Reason.PROTOCOL_ERROR),
    Case("message expiry twice", V5, BOTH, '30 ( "a" ( 02 00000001 02 00000001 ) )', Reason.PROTOCOL_ERROR),
    Case("content type twice", V5, BOTH, '30 ( "a" ( 03 "x" 03 "x" ) )', Reason.PROTOCOL_ERROR),
    Case("response topic twice", V5, BOTH, '30 ( "a" ( 08 "x" 08 "x" ) )', Reason.PROTOCOL_ERROR),
    Case("correlation data twice", V5, BOTH, '30 ( "a" ( 09 0000 09 0000 ) )', Reason.PROTOCOL_ERROR),
    Case("topic alias twice", V5, BOTH, '30 ( "a" ( 23 0001 23 0001 ) )', Reason.PROTOCOL_ERROR),
    Case("subscription identifier 0", V5, BOTH, '30 ( "a" ( 0B 00 ) )', Reason.PROTOCOL_ERROR),
    Case("topic with U+0000", V5, BOTH, "30 ( 0003 61 00 62 ( ) )", Reason.MALFORMED_PACKET),
    Case("topic with U+0000", V311, BOTH, "30 ( 0003 61 00 62 )", Reason.MALFORMED_PACKET),
    Case("topic with a surrogate", V5, BOTH, "30 ( 0003 ED A0 80 ( ) )", Reason.MALFORMED_PACKET),
    Case("topic with a surrogate", V311, BOTH, "30 ( 0003 ED A0 80 )", Reason.MALFORMED_PACKET),
    Case(
        "topic with a pair of surrogates", V5, BOTH, "30 ( 0006 EDA081EDB080 ( ) )", Reason.MALFORMED_PACKET
    ),
    Case("topic with an overlong form", V5, BOTH, "30 ( 0002 C0 AF ( ) )", Reason.MALFORMED_PACKET),
    Case("topic with an overlong null", V5, BOTH, "30 ( 0002 C0 80 ( ) )", Reason.MALFORMED_PACKET),
    Case("topic cut within a character", V5, BOTH, "30 ( 0003 61 E6 B0 ( ) )", Reason.MALFORMED_PACKET),
    Case("topic beyond Unicode", V5, BOTH, "30 ( 0004 F4 90 80 80 ( ) )", Reason.MALFORMED_PACKET),
    Case("topic of a lone continuation", V5, BOTH, "30 ( 0001 80 ( ) )", Reason.MALFORMED_PACKET),
    Case("content type with U+0000", V5, BOTH, '30 ( "a" ( 03 0001 00 ) )', Reason.MALFORMED_PACKET),
    Case(
        "user property's name not UTF-8", V5, BOTH, '30 ( "a" ( 26 0001 FF "v" ) )', Reason.MALFORMED_PACKET
    ),
    Case(
        "user property's value not UTF-8", V5, BOTH, '30 ( "a" ( 26 "k" 0001 FF ) )', Reason.MALFORMED_PACKET
    ),
    Case("user property without a value", V5, BOTH, '30 ( "a" ( 26 "k" ) )', Reason.MALFORMED_PACKET),
    # What only a server can tell.
    Case(
        "topic with a wildcard +", V5, TO_SERVER, '30 ( "a/+" ( ) )', Reason.TOPIC_NAME_INVALID, codec=False
    ),
    Case("topic with a wildcard #", V5, TO_SERVER, '30 ( "#" ( ) )', Reason.TOPIC_NAME_INVALID, codec=False),
    Case("topic with a wildcard", V311, TO_SERVER, '30 ( "a/#" )', Reason.TOPIC_NAME_INVALID, codec=False),
    Case("empty topic", V311, TO_SERVER, '30 ( "" )', Reason.TOPIC_NAME_INVALID, codec=False),
    Case("neither topic nor alias", V5, TO_SERVER, '30 ( "" ( ) )', Reason.PROTOCOL_ERROR, codec=False),
    Case("unknown topic alias", V5, TO_SERVER, '30 ( "" ( 23 0001 ) )', Reason.PROTOCOL_ERROR, codec=False),
    Case(
        "topic alias too high",
        V5,
        TO_SERVER,
        '30 ( "a" ( 23 FFFF ) )',
        Reason.TOPIC_ALIAS_INVALID,
        codec=False,
    ),
    Case(
        "subscription identifier from a client",
        V5,
        TO_SERVER,
        '30 ( "a" ( 0B 01 ) )',
        Reason.PROTOCOL_ERROR,
        codec=False,
    ),
    Case(
        "response topic with a wildcard",
        V5,
        TO_SERVER,
        '30 ( "a" ( 08 "r/#" ) )',
        Reason.PROTOCOL_ERROR,
        codec=False,
    ),
]


def _acks() -> Iterator[Case]:
    for name, first, kind, failure in (
        ("puback", "40", fields.PUBACK, 0x97),
        ("pubrec", "50", fields.PUBREC, 0x97),
        ("pubrel", "62", fields.PUBREL, 0x92),
        ("pubcomp", "70", fields.PUBCOMP, 0x92),
    ):
        wrong_flags = f"{int(first, 16) ^ 2:02X}"
        for version in (V5, V311, V31):
            yield Case(name, version, BOTH, f"{first} ( 0001 )", Ack(kind, 1))
            yield Case(f"{name} of id 0", version, BOTH, f"{first} ( 0000 )", Reason.PROTOCOL_ERROR)
            yield Case(f"{name} cut in the id", version, BOTH, f"{first} ( 00 )", Reason.MALFORMED_PACKET)
            yield Case(f"{name} of nothing", version, BOTH, f"{first} ( )", Reason.MALFORMED_PACKET)
            yield Case(
                f"{name} with wrong flags",
                version,
                BOTH,
                f"{wrong_flags} ( 0001 )",
                Reason.MALFORMED_PACKET,
            )
        yield Case(f"{name} with more", V311, BOTH, f"{first} ( 0001 00 )", Reason.MALFORMED_PACKET)
        yield Case(
            f"{name} with a reason", V5, BOTH, f"{first} ( 0001 {failure:02X} )", Ack(kind, 1, failure)
        )
        yield Case(f"{name} in full", V5, BOTH, f"{first} ( FFFF 00 ( ) )", Ack(kind, 65535), canonical=False)
        yield Case(
            f"{name} with properties",
            V5,
            BOTH,
            f'{first} ( 0001 {failure:02X} ( 1F "why" 26 "k" "v" 26 "k" "v" ) )',
            Ack(kind, 1, failure, {"reason_string": "why", "user_property": [("k", "v"), ("k", "v")]}),
        )
        yield Case(f"{name} with no such reason", V5, BOTH, f"{first} ( 0001 01 )", Reason.PROTOCOL_ERROR)
        yield Case(f"{name} with more", V5, BOTH, f"{first} ( 0001 00 ( ) 00 )", Reason.MALFORMED_PACKET)
        yield Case(
            f"{name} with a reason string twice",
            V5,
            BOTH,
            f'{first} ( 0001 00 ( 1F "x" 1F "x" ) )',
            Reason.PROTOCOL_ERROR,
        )
        yield Case(
            f"{name} with another's property",
            V5,
            BOTH,
            f"{first} ( 0001 00 ( 01 00 ) )",
            Reason.MALFORMED_PACKET,
        )


SUBSCRIBES = [
    Case("subscribe", V5, TO_SERVER, '82 ( 0001 ( ) "a/b" 01 )', Subscribe(1, [Wish(b"a/b", 1)])),
    Case(
        "subscribe with everything",
        V5,
        TO_SERVER,
        '82 ( 000A ( 0B 8001 26 "k" "v" ) "a" 2E "b/#" 1D "+" 00 )',
        Subscribe(
            10,
            [
                Wish(b"a", 2, True, True, 2),
                Wish(b"b/#", 1, True, True, 1),
                Wish(b"+"),
            ],
            {"subscription_identifier": 128, "user_property": [("k", "v")]},
        ),
    ),
    Case(
        "subscribe",
        V311,
        TO_SERVER,
        '82 ( 0001 "a/b" 01 "c" 02 )',
        Subscribe(1, [Wish(b"a/b", 1), Wish(b"c", 2)]),
    ),
    Case("subscribe", V31, TO_SERVER, '82 ( 0001 "a/b" 00 )', Subscribe(1, [Wish(b"a/b")])),
    Case("subscribe to nothing", V5, TO_SERVER, "82 ( 0001 ( ) )", Reason.PROTOCOL_ERROR),
    Case("subscribe to nothing", V311, TO_SERVER, "82 ( 0001 )", Reason.PROTOCOL_ERROR),
    Case("subscribe with id 0", V5, TO_SERVER, '82 ( 0000 ( ) "a" 00 )', Reason.PROTOCOL_ERROR),
    Case("subscribe with id 0", V311, TO_SERVER, '82 ( 0000 "a" 00 )', Reason.PROTOCOL_ERROR),
    Case("subscribe with wrong flags", V5, TO_SERVER, '80 ( 0001 ( ) "a" 00 )', Reason.MALFORMED_PACKET),
    Case("subscribe with wrong flags", V311, TO_SERVER, '83 ( 0001 "a" 00 )', Reason.MALFORMED_PACKET),
    Case("subscribe with QoS 3", V5, TO_SERVER, '82 ( 0001 ( ) "a" 03 )', Reason.MALFORMED_PACKET),
    Case("subscribe with QoS 3", V311, TO_SERVER, '82 ( 0001 "a" 03 )', Reason.MALFORMED_PACKET),
    Case("options of 5.0 in 3.1.1", V311, TO_SERVER, '82 ( 0001 "a" 04 )', Reason.MALFORMED_PACKET),
    Case("reserved option 0x40", V5, TO_SERVER, '82 ( 0001 ( ) "a" 40 )', Reason.MALFORMED_PACKET),
    Case("reserved option 0x80", V5, TO_SERVER, '82 ( 0001 ( ) "a" 80 )', Reason.MALFORMED_PACKET),
    Case("retain handling 3", V5, TO_SERVER, '82 ( 0001 ( ) "a" 30 )', Reason.PROTOCOL_ERROR),
    Case("no-local on a shared one", V5, TO_SERVER, '82 ( 0001 ( ) "$share/g/a" 04 )', Reason.PROTOCOL_ERROR),
    Case("subscribe without options", V5, TO_SERVER, '82 ( 0001 ( ) "a" )', Reason.MALFORMED_PACKET),
    Case("subscribe without options", V311, TO_SERVER, '82 ( 0001 "a" )', Reason.MALFORMED_PACKET),
    Case("subscribe without properties", V5, TO_SERVER, "82 ( 0001 )", Reason.MALFORMED_PACKET),
    Case(
        "subscription identifier 0 asked",
        V5,
        TO_SERVER,
        '82 ( 0001 ( 0B 00 ) "a" 00 )',
        Reason.PROTOCOL_ERROR,
    ),
    Case(
        "subscription identifier twice",
        V5,
        TO_SERVER,
        '82 ( 0001 ( 0B 01 0B 02 ) "a" 00 )',
        Reason.PROTOCOL_ERROR,
    ),
    Case(
        "subscription identifier of four bytes",
        V5,
        TO_SERVER,
        '82 ( 0001 ( 0B 80808001 ) "a" 00 )',
        Subscribe(1, [Wish(b"a")], {"subscription_identifier": 2_097_152}),
    ),
    Case(
        "subscription identifier of five bytes",
        V5,
        TO_SERVER,
        '82 ( 0001 ( 0B 8080808001 ) "a" 00 )',
        Reason.MALFORMED_PACKET,
    ),
    Case(
        "reason string in subscribe", V5, TO_SERVER, '82 ( 0001 ( 1F "x" ) "a" 00 )', Reason.MALFORMED_PACKET
    ),
    Case("filter not UTF-8", V5, TO_SERVER, "82 ( 0001 ( ) 0001 FF 00 )", Reason.MALFORMED_PACKET),
    Case("filter with U+0000", V311, TO_SERVER, "82 ( 0001 0001 00 00 )", Reason.MALFORMED_PACKET),
]

UNSUBSCRIBES = [
    Case("unsubscribe", V5, TO_SERVER, 'A2 ( 0001 ( ) "a/b" )', Unsubscribe(1, [b"a/b"])),
    Case(
        "unsubscribe from two",
        V5,
        TO_SERVER,
        'A2 ( 0001 ( 26 "k" "v" ) "a/b" "#" )',
        Unsubscribe(1, [b"a/b", b"#"], {"user_property": [("k", "v")]}),
    ),
    Case("unsubscribe", V311, TO_SERVER, 'A2 ( 0001 "a/b" )', Unsubscribe(1, [b"a/b"])),
    Case("unsubscribe from nothing", V5, TO_SERVER, "A2 ( 0001 ( ) )", Reason.PROTOCOL_ERROR),
    Case("unsubscribe from nothing", V311, TO_SERVER, "A2 ( 0001 )", Reason.PROTOCOL_ERROR),
    Case("unsubscribe with id 0", V5, TO_SERVER, 'A2 ( 0000 ( ) "a" )', Reason.PROTOCOL_ERROR),
    Case("unsubscribe with wrong flags", V5, TO_SERVER, 'A0 ( 0001 ( ) "a" )', Reason.MALFORMED_PACKET),
    Case("unsubscribe with wrong flags", V311, TO_SERVER, 'A0 ( 0001 "a" )', Reason.MALFORMED_PACKET),
    Case("unsubscribe cut", V5, TO_SERVER, "A2 ( 0001 ( ) 0002 61 )", Reason.MALFORMED_PACKET),
    Case(
        "subscription identifier in unsubscribe",
        V5,
        TO_SERVER,
        'A2 ( 0001 ( 0B 01 ) "a" )',
        Reason.MALFORMED_PACKET,
    ),
]

SUBACKS = [
    Case("suback", V5, TO_CLIENT, "90 ( 0001 ( ) 00 01 02 80 )", Suback(fields.SUBACK, 1, [0, 1, 2, 0x80])),
    Case(
        "suback with properties",
        V5,
        TO_CLIENT,
        '90 ( 0001 ( 1F "why" 26 "k" "v" ) 8F )',
        Suback(fields.SUBACK, 1, [0x8F], {"reason_string": "why", "user_property": [("k", "v")]}),
    ),
    Case("suback", V311, TO_CLIENT, "90 ( 0001 00 80 )", Suback(fields.SUBACK, 1, [0, 0x80])),
    Case("unsuback", V5, TO_CLIENT, "B0 ( 0001 ( ) 00 11 )", Suback(fields.UNSUBACK, 1, [0, 0x11])),
    Case("unsuback", V311, TO_CLIENT, "B0 ( 0001 )", Suback(fields.UNSUBACK, 1, [])),
    Case("suback with wrong flags", V5, TO_CLIENT, "92 ( 0001 ( ) 00 )", Reason.MALFORMED_PACKET),
    Case("suback of id 0", V5, TO_CLIENT, "90 ( 0000 ( ) 00 )", Reason.PROTOCOL_ERROR),
    Case("unsuback with more", V311, TO_CLIENT, "B0 ( 0001 00 )", Reason.MALFORMED_PACKET),
]

PINGS = [
    Case("pingreq", V5, TO_SERVER, "C0 00", Ping(fields.PINGREQ)),
    Case("pingreq", V311, TO_SERVER, "C0 00", Ping(fields.PINGREQ)),
    Case("pingresp", V5, TO_CLIENT, "D0 00", Ping(fields.PINGRESP)),
    Case("pingreq with wrong flags", V5, TO_SERVER, "C1 00", Reason.MALFORMED_PACKET),
    Case("pingreq with wrong flags", V311, TO_SERVER, "C8 00", Reason.MALFORMED_PACKET),
    Case("pingreq with more", V5, TO_SERVER, "C0 ( 00 )", Reason.MALFORMED_PACKET),
    Case("pingreq with more", V311, TO_SERVER, "C0 ( 00 )", Reason.MALFORMED_PACKET),
    Case("pingresp to the server", V5, TO_SERVER, "D0 00", Reason.PROTOCOL_ERROR, codec=False),
]

DISCONNECTS = [
    Case("disconnect", V5, BOTH, "E0 00", Disconnect()),
    Case("disconnect with its will", V5, TO_SERVER, "E0 ( 04 )", Disconnect(4)),
    Case("disconnect in full", V5, BOTH, "E0 ( 00 ( ) )", Disconnect(), canonical=False),
    Case(
        "disconnect with everything",
        V5,
        TO_SERVER,
        'E0 ( 80 ( 11 00000000 1F "why" 26 "k" "v" ) )',
        Disconnect(0x80, {"session_expiry": 0, "reason_string": "why", "user_property": [("k", "v")]}),
    ),
    Case(
        "disconnect to another server",
        V5,
        TO_CLIENT,
        'E0 ( 9C ( 1C "other" ) )',
        Disconnect(0x9C, {"server_reference": "other"}),
    ),
    Case("disconnect", V311, TO_SERVER, "E0 00", Disconnect()),
    Case("disconnect with wrong flags", V5, BOTH, "E1 00", Reason.MALFORMED_PACKET),
    Case("disconnect with wrong flags", V311, TO_SERVER, "E2 00", Reason.MALFORMED_PACKET),
    Case("disconnect with a reason", V311, TO_SERVER, "E0 ( 00 )", Reason.MALFORMED_PACKET),
    Case("disconnect with no such reason", V5, BOTH, "E0 ( 01 )", Reason.PROTOCOL_ERROR),
    Case("disconnect with more", V5, BOTH, "E0 ( 00 ( ) 00 )", Reason.MALFORMED_PACKET),
    Case(
        "disconnect with session expiry twice",
        V5,
        TO_SERVER,
        "E0 ( 00 ( 11 00000001 11 00000001 ) )",
        Reason.PROTOCOL_ERROR,
    ),
    Case(
        "disconnect with another's property", V5, TO_SERVER, "E0 ( 00 ( 21 0001 ) )", Reason.MALFORMED_PACKET
    ),
    Case(
        "disconnect with a server reference",
        V5,
        TO_SERVER,
        'E0 ( 00 ( 1C "other" ) )',
        Reason.PROTOCOL_ERROR,
        codec=False,
    ),
    Case(
        "disconnect that makes the session last",
        V5,
        TO_SERVER,
        "E0 ( 00 ( 11 00000001 ) )",
        Reason.PROTOCOL_ERROR,
        codec=False,
    ),
]

AUTHS = [
    Case("auth", V5, BOTH, "F0 00", Auth()),
    Case(
        "auth with everything",
        V5,
        BOTH,
        'F0 ( 18 ( 15 "M" 16 0001 FF 1F "why" 26 "k" "v" ) )',
        Auth(
            0x18,
            {
                "authentication_method": "M",
                "authentication_data": b"\xff",
                "reason_string": "why",
                "user_property": [("k", "v")],
            },
        ),
    ),
    Case("auth without properties", V5, BOTH, "F0 ( 19 )", Reason.MALFORMED_PACKET),
    Case("auth with wrong flags", V5, BOTH, "F1 00", Reason.MALFORMED_PACKET),
    Case("auth with no such reason", V5, BOTH, "F0 ( 01 ( ) )", Reason.PROTOCOL_ERROR),
    Case("auth with a method twice", V5, BOTH, 'F0 ( 18 ( 15 "M" 15 "M" ) )', Reason.PROTOCOL_ERROR),
    Case("auth with another's property", V5, BOTH, "F0 ( 18 ( 21 0001 ) )", Reason.MALFORMED_PACKET),
    Case("auth", V311, BOTH, "F0 00", Reason.PROTOCOL_ERROR),
    Case("auth without enhanced authentication", V5, TO_SERVER, "F0 00", Reason.PROTOCOL_ERROR, codec=False),
]

FRAMES = [
    Case("type 0", V5, BOTH, "00 00", Reason.PROTOCOL_ERROR),
    Case("type 0", V311, BOTH, "00 00", Reason.PROTOCOL_ERROR),
    Case("length overlong", V5, TO_SERVER, "C0 80 00", Reason.MALFORMED_PACKET, codec=False),
    Case(
        "length overlong of a publish",
        V5,
        TO_SERVER,
        '30 84 00 "a" 00',
        Reason.MALFORMED_PACKET,
        codec=False,
    ),
    Case("length of five bytes", V5, TO_SERVER, "30 80 80 80 80 01", Reason.MALFORMED_PACKET, codec=False),
    Case("length of five bytes", V311, TO_SERVER, "30 FF FF FF FF 01", Reason.MALFORMED_PACKET, codec=False),
    Case("packet too large", V5, TO_SERVER, "30 FF FF FF 7F", Reason.PACKET_TOO_LARGE, codec=False),
    Case("packet too large", V311, TO_SERVER, "30 FF FF FF 7F", Reason.PACKET_TOO_LARGE, codec=False),
    Case("connack to the server", V5, TO_SERVER, "20 ( 00 00 ( ) )", Reason.PROTOCOL_ERROR, codec=False),
    Case("suback to the server", V5, TO_SERVER, "90 ( 0001 ( ) 00 )", Reason.PROTOCOL_ERROR, codec=False),
    Case("unsuback to the server", V311, TO_SERVER, "B0 ( 0001 )", Reason.PROTOCOL_ERROR, codec=False),
    Case(
        "second connect",
        V5,
        TO_SERVER,
        '10 ( "MQTT" 05 02 0000 ( ) "a" )',
        Reason.PROTOCOL_ERROR,
        codec=False,
    ),
    Case(
        "second connect of another version",
        V5,
        TO_SERVER,
        '10 ( "MQTT" 06 02 0000 ( ) "a" )',
        Reason.PROTOCOL_ERROR,
        codec=False,
    ),
    Case(
        "second connect", V311, TO_SERVER, '10 ( "MQTT" 04 02 0000 "a" )', Reason.PROTOCOL_ERROR, codec=False
    ),
]

WRONG_CONNECTS = [
    Case("version 6", V5, TO_SERVER, '10 ( "MQTT" 06 02 0000 ( ) "a" )', Reason.UNSUPPORTED_PROTOCOL_VERSION),
    Case("version 2", V311, TO_SERVER, '10 ( "MQTT" 02 02 0000 "a" )', Reason.UNSUPPORTED_PROTOCOL_VERSION),
    Case(
        "3.1 by its new name",
        V311,
        TO_SERVER,
        '10 ( "MQTT" 03 02 0000 "a" )',
        Reason.UNSUPPORTED_PROTOCOL_VERSION,
    ),
    Case(
        "another protocol",
        V311,
        TO_SERVER,
        '10 ( "AMQP" 04 02 0000 "a" )',
        Reason.UNSUPPORTED_PROTOCOL_VERSION,
    ),
    Case("reserved connect flag", V5, TO_SERVER, '10 ( "MQTT" 05 03 0000 ( ) "a" )', Reason.MALFORMED_PACKET),
    Case("reserved connect flag", V311, TO_SERVER, '10 ( "MQTT" 04 03 0000 "a" )', Reason.MALFORMED_PACKET),
    Case(
        "connect with wrong flags", V5, TO_SERVER, '11 ( "MQTT" 05 02 0000 ( ) "a" )', Reason.MALFORMED_PACKET
    ),
    Case(
        "will QoS without a will", V5, TO_SERVER, '10 ( "MQTT" 05 0A 0000 ( ) "a" )', Reason.MALFORMED_PACKET
    ),
    Case(
        "will retain without a will",
        V5,
        TO_SERVER,
        '10 ( "MQTT" 05 22 0000 ( ) "a" )',
        Reason.MALFORMED_PACKET,
    ),
    Case(
        "will retain without a will", V311, TO_SERVER, '10 ( "MQTT" 04 22 0000 "a" )', Reason.MALFORMED_PACKET
    ),
    Case(
        "will with QoS 3",
        V5,
        TO_SERVER,
        '10 ( "MQTT" 05 1E 0000 ( ) "a" ( ) "w" 0000 )',
        Reason.MALFORMED_PACKET,
    ),
    Case(
        "will with QoS 3", V311, TO_SERVER, '10 ( "MQTT" 04 1E 0000 "a" "w" 0000 )', Reason.MALFORMED_PACKET
    ),
    Case(
        "will flag without a will", V5, TO_SERVER, '10 ( "MQTT" 05 06 0000 ( ) "a" )', Reason.MALFORMED_PACKET
    ),
    Case("user name missing", V5, TO_SERVER, '10 ( "MQTT" 05 82 0000 ( ) "a" )', Reason.MALFORMED_PACKET),
    Case("password missing", V311, TO_SERVER, '10 ( "MQTT" 04 C2 0000 "a" "u" )', Reason.MALFORMED_PACKET),
    Case(
        "password without a user name",
        V311,
        TO_SERVER,
        '10 ( "MQTT" 04 42 0000 "a" 0001 FF )',
        Reason.MALFORMED_PACKET,
    ),
    Case("connect with more", V5, TO_SERVER, '10 ( "MQTT" 05 02 0000 ( ) "a" 00 )', Reason.MALFORMED_PACKET),
    Case("connect with more", V311, TO_SERVER, '10 ( "MQTT" 04 02 0000 "a" 00 )', Reason.MALFORMED_PACKET),
    Case("connect without an id", V5, TO_SERVER, '10 ( "MQTT" 05 02 0000 ( ) )', Reason.MALFORMED_PACKET),
    Case("connect cut in the keep-alive", V5, TO_SERVER, '10 ( "MQTT" 05 02 00 )', Reason.MALFORMED_PACKET),
    Case("id not UTF-8", V5, TO_SERVER, '10 ( "MQTT" 05 02 0000 ( ) 0001 FF )', Reason.MALFORMED_PACKET),
    Case("id with U+0000", V5, TO_SERVER, '10 ( "MQTT" 05 02 0000 ( ) 0001 00 )', Reason.MALFORMED_PACKET),
    Case(
        "user name with a surrogate",
        V5,
        TO_SERVER,
        '10 ( "MQTT" 05 82 0000 ( ) "a" 0003 EDB080 )',
        Reason.MALFORMED_PACKET,
    ),
    Case(
        "will topic not UTF-8",
        V5,
        TO_SERVER,
        '10 ( "MQTT" 05 06 0000 ( ) "a" ( ) 0001 FF 0000 )',
        Reason.MALFORMED_PACKET,
    ),
    Case(
        "receive maximum 0",
        V5,
        TO_SERVER,
        '10 ( "MQTT" 05 02 0000 ( 21 0000 ) "a" )',
        Reason.PROTOCOL_ERROR,
    ),
    Case(
        "maximum packet size 0",
        V5,
        TO_SERVER,
        '10 ( "MQTT" 05 02 0000 ( 27 00000000 ) "a" )',
        Reason.PROTOCOL_ERROR,
    ),
    Case(
        "request problem information 2",
        V5,
        TO_SERVER,
        '10 ( "MQTT" 05 02 0000 ( 17 02 ) "a" )',
        Reason.PROTOCOL_ERROR,
    ),
    Case(
        "request response information 2",
        V5,
        TO_SERVER,
        '10 ( "MQTT" 05 02 0000 ( 19 02 ) "a" )',
        Reason.PROTOCOL_ERROR,
    ),
    Case(
        "authentication data without a method",
        V5,
        TO_SERVER,
        '10 ( "MQTT" 05 02 0000 ( 16 0001 FF ) "a" )',
        Reason.PROTOCOL_ERROR,
        codec=False,
    ),
    Case(
        "will delay among the connect properties",
        V5,
        TO_SERVER,
        '10 ( "MQTT" 05 02 0000 ( 18 00000001 ) "a" )',
        Reason.MALFORMED_PACKET,
    ),
    Case(
        "session expiry among the will properties",
        V5,
        TO_SERVER,
        '10 ( "MQTT" 05 06 0000 ( ) "a" ( 11 00000001 ) "w" 0000 )',
        Reason.MALFORMED_PACKET,
    ),
    Case(
        "will delay twice",
        V5,
        TO_SERVER,
        '10 ( "MQTT" 05 06 0000 ( ) "a" ( 18 00000001 18 00000001 ) "w" 0000 )',
        Reason.PROTOCOL_ERROR,
    ),
    Case(
        "will topic with a wildcard",
        V5,
        TO_SERVER,
        '10 ( "MQTT" 05 06 0000 ( ) "a" ( ) "w/#" 0000 )',
        Reason.TOPIC_NAME_INVALID,
        codec=False,
    ),
    Case(
        "no such authentication method",
        V5,
        TO_SERVER,
        '10 ( "MQTT" 05 02 0000 ( 15 "M" ) "a" )',
        Reason.BAD_AUTHENTICATION_METHOD,
        codec=False,
    ),
    Case(
        "no id in a session that should last",
        V311,
        TO_SERVER,
        '10 ( "MQTT" 04 00 0000 "" )',
        Reason.CLIENT_IDENTIFIER_NOT_VALID,
        codec=False,
    ),
    *(
        Case(
            f"connect property {number} twice",
            V5,
            TO_SERVER,
            f'10 ( "MQTT" 05 02 0000 ( {number} {value} {number} {value} ) "a" )',
            Reason.PROTOCOL_ERROR,
        )
        for number, value in (
            ("11", "00000001"),
            ("15", '"M"'),
            ("17", "01"),
            ("19", "01"),
            ("21", "0001"),
            ("22", "0001"),
            ("27", "00000100"),
        )
    ),
]

CASES = [
    *CONNECTS,
    *WRONG_CONNECTS,
    *CONNACKS,
    *PUBLISHES,
    *WRONG_PUBLISHES,
    *_acks(),
    *SUBSCRIBES,
    *UNSUBSCRIBES,
    *SUBACKS,
    *PINGS,
    *DISCONNECTS,
    *AUTHS,
    *FRAMES,
]
VALID = [case for case in CASES if not isinstance(case.says, Reason)]
WRONG = [case for case in CASES if isinstance(case.says, Reason)]
WRONG_FROM_CLIENTS = [case for case in WRONG if case.direction != TO_CLIENT]
