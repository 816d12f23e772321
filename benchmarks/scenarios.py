"""The scenarios: what the generator does in each, which figure counts, and what Pyrite has to reach."""

from __future__ import annotations

from dataclasses import dataclass, field

QOS0 = ("throughput", "--window", "4096")
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
P99 = Metric("p99_us", "p99 latency", False, "{:,.0f} µs")
TIME = Metric("seconds", "time", False, "{:.2f} s")
MEMORY = Metric("bytes_per_connection", "memory per connection", False, "{:,.0f} B")


@dataclass(frozen=True)
class Scenario:
    """One row of the comparison.

    `floors` are ratios, Pyrite's figure to the peer's: at least so much where more is better, else at most.
    `measured_by` names the scenario whose run gives this figure too.
    """

    id: str
    title: str
    arguments: tuple[str, ...]
    metric: Metric = DELIVERED
    floors: dict[str, float] = field(default_factory=dict)
    mqtt5: bool = False
    basic: bool = False  # a slow broker takes part
    warmup: float = 0.5
    measured_by: str | None = None

    @property
    def run_id(self) -> str:
        """The scenario whose runs hold this one's figure."""
        return self.measured_by or self.id

    def reached(self, peer: str, ratio: float) -> bool | None:
        """Tell whether this ratio reaches the floor against that peer; None where there is no floor."""
        floor = self.floors.get(peer)
        if floor is None:
            return None
        return ratio >= floor if self.metric.more_is_better else ratio <= floor

    def floor_text(self, peer: str) -> str:
        """Return the floor against that peer as text, or nothing."""
        floor = self.floors.get(peer)
        if floor is None:
            return ""
        return f"{'≥' if self.metric.more_is_better else '≤'} {floor:g}x"


def _floors(nats: float, mosquitto: float) -> dict[str, float]:
    return {"nats": nats, "mosquitto": mosquitto}


ALL = (
    Scenario("qos0", "1 publisher, 1 subscriber, QoS 0, pipelined", QOS0, floors=_floors(1.5, 4), basic=True),
    Scenario(
        "qos0-single-writes",
        "the same, one packet per write",
        (*QOS0, "--one-packet-per-write"),
        floors=_floors(0.8, 1.5),
    ),
    Scenario(
        "fan-in",
        "200 publishers, one packet per write, 1 subscriber of all",
        (*QOS0, *FAN_IN),
        floors=_floors(1.2, 1.7),
    ),
    Scenario(
        "fan-out",
        "1 publisher, 100 subscribers, QoS 0",
        ("throughput", "--subscribers", "100", "--window", "1000"),
        floors=_floors(5, 20),
    ),
    Scenario(
        "qos1",
        "1 publisher, 1 subscriber, QoS 1, window 1,000",
        ("throughput", "--qos", "1", "--window", "1000"),
        floors=_floors(5, 4),
        basic=True,
    ),
    Scenario(
        "qos2",
        "1 publisher, 1 subscriber, QoS 2, window 1,000",
        ("throughput", "--qos", "2", "--window", "1000"),
        floors=_floors(12, 4),
        basic=True,
    ),
    Scenario(
        "many",
        "1,000 publishers, subscribers and topics, 16 B, QoS 1, 1,000 messages/s in total",
        ("paced", *THOUSAND, "--payload", "16", "--qos", "1", "--rate", "1000"),
        metric=P99,
        floors=_floors(1, 1.5),
        warmup=2,  # a broker may still be busy with the 2,000 connections and 1,000 subscriptions just made
    ),
    Scenario(
        "connect",
        "9,000 connections, up to 1,000 being opened at a time",
        ("connect", "--connections", str(CONNECTIONS), "--in-progress", "1000"),
        metric=TIME,
        floors=_floors(1.5, 1),
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
        floors=_floors(0.25, 2),
        measured_by="connect",
    ),
    # All the above repeat one topic and one size, which a broker may exploit. These two do not.
    Scenario("qos0-mixed", "qos0, but 16 topics in turn, of 34 to 94 bytes", (*QOS0, *MIXED)),
    Scenario(
        "qos1-mixed",
        "qos1, but 16 topics in turn, of 34 to 94 bytes",
        ("throughput", "--qos", "1", "--window", "1000", *MIXED),
    ),
    Scenario(
        "qos0-v5", "qos0 with MQTT 5, content type and user property", (*QOS0, *WITH_PROPERTIES), mqtt5=True
    ),
    Scenario(
        "qos1-v5",
        "qos1 with MQTT 5, content type and user property",
        ("throughput", "--qos", "1", "--window", "1000", *WITH_PROPERTIES),
        mqtt5=True,
    ),
)

# What the generator does against a mere byte-forwarder, to show that it is not what limits a broker above.
CEILINGS = ("qos0", "qos0-single-writes", "fan-in", "fan-out")
