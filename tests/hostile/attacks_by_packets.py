"""Attacks with packets and lines that are expensive to handle: long lists, many properties, many ids."""

from __future__ import annotations

import asyncio
import socket
import time

from tests.conformance.wire import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    ack_packet,
    connect_packet,
    options,
    publish_packet,
    string,
    subscribe_packet,
    unsubscribe_packet,
)
from tests.hostile.dialing import (
    MQTT_SCHEMES,
    PATIENCE,
    PINGRESP,
    SOAKING,
    Attack,
    Done,
    Ports,
    Stream,
    Wire,
    again_and_again,
    client,
    counted,
    dial,
    empty_user_properties,
    hang_up,
    in_parallel,
    log_in,
    open_wire,
    prepares,
    ready_after,
    request,
)

from .dialing import pace

KIB = 1024
LARGEST_READ = 256 * KIB
MAX_PROPERTIES = 512
MAX_FILTERS = 1_000
RETAINED = 50_000 if SOAKING else 10_000
"""Topics with a retained message that are listed again and again."""
LISTS = 40
"""Lists that one client requests in one write."""
SHARED = 10_000
"""Shared subscriptions of one client: as many as it may have."""
CROWD = 100
"""Subscribers of one topic."""


async def line_ack_ranges(ports: Ports, until: float, done: Done) -> None:
    """Acknowledge 0-65535 up to 1,500 times in a line of 12 KB; over TCP and UDP."""
    allowed = b"Ack" + b" 0-65535" * 990 + b"\n"
    too_many = b"Ack" + b" 0-65535" * 1_500 + b"\n"

    async def over_tcp(which: int) -> None:
        reader, writer = await client(ports["line"], f"ranges-{which}", line=True)
        writer.write(b"Subscribe ranges ack\n" + b"Publish ranges 1\nx\n" * 100)
        while time.monotonic() < until:
            writer.write((allowed if which else too_many) * 20 + b"Ping over\n")
            async with asyncio.timeout(PATIENCE):
                while b"Pong over" not in await reader.readuntil(b"\n"):
                    pass
            done["lines"] += 20
            await pace()
        writer.transport.abort()

    async def over_udp(which: int) -> None:
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as endpoint:
            endpoint.setblocking(False)
            endpoint.connect(("127.0.0.1", int(ports["udp"])))
            endpoint.send(b"Subscribe ranges/udp\n")
            while time.monotonic() < until:
                endpoint.send(allowed if which % 2 else too_many)
                endpoint.send(b"Ping over\n")
                answer = b""
                try:
                    async with asyncio.timeout(1):  # datagrams may be lost
                        while not answer.startswith(b"Pong over"):
                            answer = await loop.sock_recv(endpoint, 65_536)
                            if answer.startswith(b"Ping "):  # it asks whether the address is this client's
                                endpoint.send(answer.replace(b"Ping", b"Pong", 1))
                except TimeoutError:
                    continue
                done["datagrams"] += 1
                await pace()

    await asyncio.gather(again_and_again(2, until, over_tcp), again_and_again(2, until, over_udp))


async def huge_connects(ports: Ports, until: float, done: Done) -> None:
    """Send CONNECT with the maximum of properties allowed before the login, and one of 16 MiB."""
    connects = [
        connect_packet("full", raw=empty_user_properties(12_000)),
        connect_packet("full", raw=b"\x26\0\1k" + string(b"x" * 60_000)),
        connect_packet("full", raw=empty_user_properties(MAX_PROPERTIES), clean=True),
        connect_packet("full", raw=empty_user_properties(16 * KIB * KIB // 5 - 100)),
    ]
    turn = iter(range(1_000_000))

    async def connect(_: int) -> None:
        number = next(turn)
        scheme = MQTT_SCHEMES[number % len(MQTT_SCHEMES)]
        wire = await open_wire(ports, scheme)
        done[scheme] += 1
        wire.write(connects[number // len(MQTT_SCHEMES) % len(connects)])
        await asyncio.wait_for(wire.reader.read(1_000), PATIENCE)
        wire.abort()

    await again_and_again(3, until, connect)


async def full_packets(ports: Ports, until: float, done: Done) -> None:
    """Send PUBLISH, SUBSCRIBE and UNSUBSCRIBE with the most properties and filters, over each scheme."""
    full = (b"\x26\0\1k" + string(b"x" * 120)) * MAX_PROPERTIES
    empty = empty_user_properties(MAX_PROPERTIES)
    deep = "a/" * 60

    def filters(first: int) -> list[str]:
        return [f"full/{deep}{number}" for number in range(first, first + MAX_FILTERS)]

    publishes = [
        publish_packet("full", b"x", raw=full) * 4,
        counted(LARGEST_READ, lambda _: publish_packet("full", b"x", raw=empty)),
    ]
    rounds = {
        "PUBLISH": publishes,
        "SUBSCRIBE": [
            subscribe_packet(1, [(one, options()) for one in filters(first)], raw=empty)
            for first in range(0, 4_000, MAX_FILTERS)
        ],
        "UNSUBSCRIBE": [
            unsubscribe_packet(1, filters(first), raw=empty) for first in range(0, 4_000, MAX_FILTERS)
        ],
    }

    async def send(which: int) -> None:
        wire = await log_in(ports, MQTT_SCHEMES[which], f"full-{which}")
        while time.monotonic() < until:
            for kind, packets in rounds.items():
                for packet in packets:
                    await wire.round_trip(packet)
                    done[kind] += 1
        wire.abort()

    await again_and_again(len(MQTT_SCHEMES), until, send)


async def alternating_acknowledgements(ports: Ports, until: float, done: Done) -> None:
    """PUBREL and PUBREC in turn, up to 512 KiB at a time, from a client that may do nothing but connect."""

    def pair(number: int) -> bytes:
        packet_id = number % 40_000 + 1
        return ack_packet(PUBREL, packet_id) + ack_packet(PUBREC, packet_id)

    await _send_repeatedly(ports, until, done, [counted(size * KIB, pair) for size in (256, 512)])


async def unknown_ids(ports: Ports, until: float, done: Done) -> None:
    """Send PUBREC, PUBREL, PUBCOMP and PUBACK with unknown packet ids, up to the largest read."""

    def run(kind: int) -> bytes:
        return counted(LARGEST_READ, lambda number: ack_packet(kind, number % 40_000 + 1))

    await _send_repeatedly(ports, until, done, [run(kind) for kind in (PUBREC, PUBREL, PUBACK, PUBCOMP)])


async def repeated_ids(ports: Ports, until: float, done: Done) -> None:
    """Repeat QoS 2 messages with a few packet ids, never releasing them."""

    def repeated(number: int) -> bytes:
        return publish_packet("repeated", b"x", qos=2, packet_id=number % 10 + 1, dup=number > 10)

    await _send_repeatedly(ports, until, done, [counted(LARGEST_READ, repeated)])


async def refused_messages(ports: Ports, until: float, done: Done) -> None:
    """Publish QoS 1 and 2 messages on different forbidden topics, over MQTT and the line protocol."""

    def refused(number: int) -> bytes:
        return publish_packet(f"refused/{number}", b"x", qos=1 + number % 2, packet_id=number % 40_000 + 1)

    async def as_lines(which: int) -> None:
        reader, writer = await dial(ports["line"])
        writer.write(f"Connect refused-{which} user=reader password=word\n".encode())
        while time.monotonic() < until:
            lines = b"".join(b"Publish refused/%d 1\nx\n" % number for number in range(2_000))
            writer.write(lines + b"Ping over\n")
            async with asyncio.timeout(PATIENCE):
                while b"Pong over" not in await reader.readuntil(b"\n"):
                    pass
            done["lines"] += 2_000
        await hang_up((reader, writer))

    await asyncio.gather(
        _send_repeatedly(ports, until, done, [counted(LARGEST_READ, refused)], user="reader"),
        again_and_again(1, until, as_lines),
    )


async def _send_repeatedly(
    ports: Ports, until: float, done: Done, reads: list[bytes], user: str | None = None
) -> None:
    """Send the same bytes repeatedly over TCP, WebSocket and a Unix socket, at most two at a time."""

    async def send(which: int) -> None:
        scheme = [one for one in ("mqtt", "ws", "unix") if one in ports][which]
        wire = await log_in(ports, scheme, f"repeats-{which}", user)
        while time.monotonic() < until:
            for data in reads:
                await wire.round_trip(data)
                done[scheme] += 1
            await pace()
        wire.abort()

    await again_and_again(len({"mqtt", "ws", "unix"} & ports.keys()), until, send)


@prepares
async def lists_of_topics(ports: Ports, until: float, done: Done) -> None:
    """Retain messages on many topics; list them by request, by subscribing, as a line, and over HTTP."""
    began = time.monotonic()
    keeper = await log_in(ports, "mqtt", "keeper")
    await _retain(keeper, b"x" * 20)
    until = ready_after(began, until)
    requests = b"".join(
        publish_packet("$pyrite/topics/list", b"listed/#", response_topic="answers") for _ in range(LISTS)
    )
    again = b"".join(subscribe_packet(1, [("listed/#", options())]) for _ in range(LISTS))

    async def read_until_over(stream: Stream, what: str, word: bytes) -> None:
        while time.monotonic() < until:
            read = await asyncio.wait_for(stream[0].read(262_144), PATIENCE)
            if not read:
                return
            done[what] += read.count(word)

    async def by_mqtt(which: int) -> None:
        wire = await log_in(ports, ("mqtt", "ws", "unix")[which % 3], f"lists-{which}")
        wire.write(again if which % 2 else requests)
        what = "subscribed" if which % 2 else "requested"
        await read_until_over((wire.reader, wire.writer), what, b"listed/")
        wire.abort()

    async def by_line(_: int) -> None:
        stream = await client(ports["line"], "lists", line=True)
        stream[1].write(b"List listed/#\n" * LISTS + b"Subscribe listed/#\n")
        await read_until_over(stream, "lines", b"listed/")
        stream[1].transport.abort()

    async def by_http(_: int) -> None:
        done["pages"] += await request(ports, "/api/v1/topics?limit=1000&filter=listed/%23") == 200

    await asyncio.gather(
        again_and_again(4, until, by_mqtt),
        again_and_again(1, until, by_line),
        again_and_again(1, until, by_http),
    )
    await _retain(keeper, b"")
    await keeper.end()


async def _retain(keeper: Wire, payload: bytes) -> None:
    """Set the retained messages to be listed or, with an empty payload, remove them."""
    for first in range(0, RETAINED, 1_000):
        topics = range(first, first + 1_000)
        await keeper.round_trip(
            b"".join(publish_packet(f"listed/{one}", payload, retain=True) for one in topics)
        )


class _Subscriber(asyncio.Protocol):
    """Subscribes to one topic and counts the received bytes."""

    def __init__(self, number: int, qos: int, done: Done) -> None:
        self._number, self._qos, self._done = number, qos, done
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(connect_packet(f"crowd-{self._number}", receive_maximum=100))
        transport.write(subscribe_packet(1, [("crowd", options(qos=self._qos))]))

    def data_received(self, data: bytes) -> None:
        self._done["bytes"] += len(data)


@prepares
async def runs_to_many(ports: Ports, until: float, done: Done) -> None:
    """Publish runs of small messages to 100 subscribers, some of which acknowledge nothing.

    A run is as long as the largest read; the next one starts when it is acknowledged.
    """
    began = time.monotonic()
    loop = asyncio.get_running_loop()
    crowd: list[_Subscriber] = []
    for number in range(CROWD):
        made = loop.create_connection(
            lambda number=number: _Subscriber(number, int(number % 10 == 0), done),  # type: ignore[misc]
            "127.0.0.1",
            int(ports["mqtt"]),
        )
        crowd.append((await made)[1])
    until = ready_after(began, until)
    total = 16_000
    runs = [
        (publish_packet("crowd", b"x") * total, PINGRESP),
        (
            b"".join(publish_packet("crowd", b"x", qos=1, packet_id=one) for one in range(1, total + 1)),
            ack_packet(PUBACK, total),
        ),
    ]

    async def publish(which: int) -> None:
        wire = await log_in(ports, ("mqtt", "unix")[which], f"publisher-{which}")
        while time.monotonic() < until:
            for run, answer in runs:
                await wire.round_trip(run, answer)
                done["runs"] += 1
        wire.abort()

    await again_and_again(2, until, publish)
    for one in crowd:
        one.transport.abort()


async def shared_subscriptions(ports: Ports, until: float, done: Done) -> None:
    """Create 10,000 shared subscriptions, disconnect with all of them at once, and reconnect."""
    packets = [
        subscribe_packet(
            1,
            [
                (f"$share/group/shared/{number}", options(qos=1))
                for number in range(first, first + MAX_FILTERS)
            ],
        )
        for first in range(0, SHARED, MAX_FILTERS)
    ]

    async def come_and_go(which: int) -> None:
        wire = await log_in(ports, ("mqtt", "ws")[which], f"shared-{which}")
        for packet in packets:
            await wire.round_trip(packet)
        wire.abort()
        done["left"] += SHARED

    async def until_over(which: int) -> None:
        while not done["left"] or time.monotonic() < until:
            await come_and_go(which)

    await in_parallel(2, until_over)


ATTACKS: tuple[Attack, ...] = (
    line_ack_ranges,
    huge_connects,
    full_packets,
    alternating_acknowledgements,
    unknown_ids,
    repeated_ids,
    refused_messages,
    lists_of_topics,
    runs_to_many,
    shared_subscriptions,
)
