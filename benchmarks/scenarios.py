"""The scenarios: what the generator does in each, which figure counts, and what Pyrite has to reach."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

PYRITE, EPHEMERAL = "pyrite", "pyrite --ephemeral"
USUAL = (PYRITE, EPHEMERAL, "nats", "mosquitto")
BASIC = (*USUAL, "amqtt")  # amqtt is too slow for the others
MQTT5 = (PYRITE, EPHEMERAL, "mosquitto")  # nats-server speaks 3.1.1 only
DURABLE = (*USUAL, "nats-sync")

QOS0 = ("throughput", "--window", "4096")
QOS1 = ("throughput", "--qos", "1", "--window", "1000")
NO_SUBSCRIBER = ("throughput", "--qos", "1", "--subscribers", "0")
FOUR_PUBLISHERS = (*NO_SUBSCRIBER, "--publishers", "4", "--topics", "4", "--window", "1000")
FAN_IN = ("--publishers", "200", "--topics", "200", "--one-packet-per-write")
MIXED = ("--mixed", "--topics", "16")
THOUSAND = ("--publishers", "1000", "--subscribers", "1000", "--topics", "1000", "--one-to-one")
WITH_PROPERTIES = ("--mqtt", "5", "--properties")
CONNECTIONS = 9000


@dataclass(frozen=True)
class Metric:
    """A figure of a run, how it is written, and whether more of it is better."""

    figure: str
    title: str
    more_is_better: bool
    form: str = "{:,.0f}"

    def write(self, value: float) -> str:
        """Return the value as text, with its unit."""
        return self.form.format(value)


DELIVERED = Metric("out_per_second", "messages delivered a second", True, "{:,.0f}/s")
ACKNOWLEDGED = Metric("acknowledged_per_second", "messages acknowledged a second", True, "{:,.0f}/s")
P50 = Metric("p50_us", "median latency", False, "{:,.0f} µs")
P99 = Metric("p99_us", "p99 latency", False, "{:,.0f} µs")
TIME = Metric("seconds", "time", False, "{:.2f} s")
MEMORY = Metric("bytes_per_connection", "memory per connection", False, "{:,.0f} B")
BARE_WRITES = Metric("bare_writes", "median latency, in bare writes", False, "{:.2f}x")
LONGEST_BLOCK = Metric("longest_block_ms", "longest block", False, "{:.1f} ms")
SCANNED = Metric("scanned_per_second", "messages read a second", True, "{:,.0f}/s")

# What Pyrite has to reach, by its name and the peer's: its figure divided by the peer's, at least so much
# where more is better, else at most. With ITSELF as the peer it is the figure as it is.
ITSELF = ""
Floors = dict[tuple[str, str], float]
KEPT: Floors = {(PYRITE, EPHEMERAL): 0.65}  # the share of its throughput that Pyrite keeps with its log on


@dataclass(frozen=True)
class Scenario:
    """One row of the comparison.

    `then` is a second load, put on the broker after the first: only its faults count.
    `probe` is what else a run measures. `measured_by` names the scenario whose run gives this figure too.
    """

    id: str
    title: str
    arguments: tuple[str, ...]
    metric: Metric = DELIVERED
    floors: Floors = field(default_factory=dict)
    brokers: tuple[str, ...] = USUAL
    warmup: float = 0.5
    then: tuple[str, ...] = ()
    probe: Literal["", "bare writes", "longest block", "scan"] = ""
    measured_by: str | None = None

    @property
    def run_id(self) -> str:
        """The scenario whose runs hold this one's figure."""
        return self.measured_by or self.id

    def reached(self, ours: str, peer: str, value: float) -> bool | None:
        """Tell whether this ratio (or figure) of ours reaches the floor; None where there is no floor."""
        floor = self.floors.get((ours, peer))
        if floor is None:
            return None
        return value >= floor if self.metric.more_is_better else value <= floor

    def value_text(self, peer: str, value: float) -> str:
        """Return a ratio to this peer as text; with ITSELF, the figure."""
        return self.metric.write(value) if peer == ITSELF else f"{value:.2f}x"

    def floor_text(self, ours: str, peer: str) -> str:
        """Return the floor as text, or nothing."""
        floor = self.floors.get((ours, peer))
        if floor is None:
            return ""
        text = self.metric.write(floor) if peer == ITSELF else f"{floor:g}x"
        return f"{'≥' if self.metric.more_is_better else '≤'} {text}"


def _in_memory(nats: float, mosquitto: float) -> Floors:
    return {(EPHEMERAL, "nats"): nats, (EPHEMERAL, "mosquitto"): mosquitto}


ALL = (
    Scenario(
        "qos0",
        "1 publisher, 1 subscriber, QoS 0, pipelined",
        QOS0,
        floors={**_in_memory(1.5, 4), **KEPT},
        brokers=BASIC,
    ),
    Scenario(
        "qos0-single-writes",
        "the same, one packet per write and segment",
        (*QOS0, "--one-packet-per-write"),
        floors={**_in_memory(0.8, 1.5), **KEPT},
    ),
    Scenario(
        "fan-in",
        "200 publishers, one packet per write and segment, 1 subscriber of all",
        (*QOS0, *FAN_IN),
        floors={**_in_memory(1.2, 1.7), **KEPT},
    ),
    Scenario(
        "fan-out",
        "1 publisher, 100 subscribers, QoS 0",
        ("throughput", "--subscribers", "100", "--window", "1000"),
        floors={**_in_memory(5, 20), **KEPT},
    ),
    Scenario(
        "qos1",
        "1 publisher, 1 subscriber, QoS 1, window 1,000",
        QOS1,
        floors={**_in_memory(5, 4), (PYRITE, "mosquitto"): 1.7, (PYRITE, "nats-sync"): 50},
        brokers=(*DURABLE, "amqtt"),
    ),
    Scenario(
        "qos2",
        "1 publisher, 1 subscriber, QoS 2, window 1,000",
        ("throughput", "--qos", "2", "--window", "1000"),
        floors=_in_memory(12, 4),
        brokers=BASIC,
    ),
    Scenario(
        "many",
        "1,000 publishers, subscribers and topics, 16 B, QoS 1, 1,000 messages/s in total",
        ("paced", *THOUSAND, "--payload", "16", "--qos", "1", "--rate", "1000"),
        metric=P99,
        floors=_in_memory(1, 1.5),
        warmup=2,  # a broker may still be busy with the 2,000 connections and 1,000 subscriptions just made
    ),
    Scenario(
        "connect",
        "9,000 connections, up to 1,000 being opened at a time",
        ("connect", "--connections", str(CONNECTIONS), "--in-progress", "1000"),
        metric=TIME,
        floors=_in_memory(1.5, 1),
    ),
    Scenario(
        "connect-gentle",
        "9,000 connections, up to 64 at a time: no accept queue overflows",
        ("connect", "--connections", str(CONNECTIONS), "--in-progress", "64"),
        metric=TIME,
    ),
    Scenario(
        "memory",
        "memory (PSS growth) per idle connection, of 9,000",
        (),
        metric=MEMORY,
        floors=_in_memory(0.25, 2),
        measured_by="connect",
    ),
    # All the above repeat one topic and one size, which a broker may exploit. These two do not.
    Scenario("qos0-mixed", "qos0, but 16 topics in turn, of 34 to 94 bytes", (*QOS0, *MIXED), floors=KEPT),
    Scenario(
        "qos1-mixed",
        "qos1, but 16 topics in turn, of 34 to 94 bytes",
        (*QOS1, *MIXED),
    ),
    Scenario(
        "qos0-v5",
        "qos0 with MQTT 5, content type and user property",
        (*QOS0, *WITH_PROPERTIES),
        floors=KEPT,
        brokers=MQTT5,
    ),
    Scenario(
        "qos1-v5",
        "qos1 with MQTT 5, content type and user property",
        (*QOS1, *WITH_PROPERTIES),
        brokers=MQTT5,
    ),
    # What the log is for, and what it costs.
    Scenario(
        "qos1-publish",
        "4 publishers, no subscriber, QoS 1, window 1,000 each",
        FOUR_PUBLISHERS,
        metric=ACKNOWLEDGED,
        floors={(PYRITE, "nats-sync"): 40},
        brokers=DURABLE,
    ),
    Scenario(
        "qos1-single",
        "1 publisher, no subscriber, QoS 1, the next message after the PUBACK of the last",
        (*NO_SUBSCRIBER, "--window", "1"),
        metric=P50,
        brokers=DURABLE,
        probe="bare writes",
    ),
    Scenario(
        "qos1-single-disk",
        "qos1-single, divided by a bare write of 1 KiB and fdatasync on the same disk",
        (),
        metric=BARE_WRITES,
        floors={(PYRITE, ITSELF): 2.5},
        brokers=(PYRITE, "nats-sync"),
        measured_by="qos1-single",
    ),
    Scenario(
        "catch-up",
        "a session returns after 1,000,000 messages, QoS 1; from CONNECT to the last",
        ("catch-up", "--qos", "1", "--window", "1000", "--messages", "1000000"),
        floors={(PYRITE, ITSELF): 300_000},
        brokers=(PYRITE, "mosquitto"),
    ),
    Scenario(
        "scan",
        "the log of qos1-publish read into Arrow, on one core",
        FOUR_PUBLISHERS,
        metric=SCANNED,
        floors={(PYRITE, ITSELF): 5_000_000},
        brokers=(PYRITE,),
        probe="scan",
    ),
    Scenario(
        "loop-block",
        "the longest time that the event loop was blocked, under qos1 and then qos0",
        QOS1,
        metric=LONGEST_BLOCK,
        floors={(PYRITE, ITSELF): 5},
        brokers=(PYRITE, EPHEMERAL),
        then=QOS0,
        probe="longest block",
    ),
)

# What the generator does against a mere byte-forwarder, to show that it is not what limits a broker above.
CEILINGS = ("qos0", "qos0-single-writes", "fan-in", "fan-out")
