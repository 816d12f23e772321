"""The scenarios: the load of each, the figure that counts, and the goals that Pyrite has to reach."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

PYRITE, EPHEMERAL = "pyrite", "pyrite --ephemeral"
COMPILED, COMPILED_EPHEMERAL = "pyrite compiled", "pyrite compiled --ephemeral"
LOG_ON = (PYRITE, COMPILED)
IN_MEMORY = (EPHEMERAL, COMPILED_EPHEMERAL)
OURS = (*LOG_ON, *IN_MEMORY)
USUAL = (*OURS, "nats", "mosquitto")
BASIC = (*USUAL, "amqtt")  # amqtt is too slow for the others
WITHOUT_NATS = (*OURS, "mosquitto")  # nats-server speaks MQTT 3.1.1 only, and has no TLS here
DURABLE = (*USUAL, "nats-sync")

JSON_1000 = ("throughput", "--json", "--topics", "1000", "--per-publisher", "1000")
WINDOW_0 = ("--window", "4096")
WINDOW_1 = ("--qos", "1", "--window", "1000")
WINDOW_2 = ("--qos", "2", "--window", "1000")
NO_SUBSCRIBER = ("throughput", "--json", "--qos", "1", "--subscribers", "0")
FOUR_PUBLISHERS = (
    *NO_SUBSCRIBER,
    "--publishers",
    "4",
    "--topics",
    "1000",
    "--per-publisher",
    "250",
    "--window",
    "1000",
)
PAIRS = ("--publishers", "1000", "--subscribers", "1000", "--topics", "1000", "--one-to-one", "--json")
FLOOD_0 = ("throughput", *WINDOW_0)
FLOOD_1 = ("throughput", *WINDOW_1)
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
CPU = Metric("broker_us_per_message", "CPU time a message", False, "{:.2f} µs")
P50 = Metric("p50_us", "median latency", False, "{:,.0f} µs")
P99 = Metric("p99_us", "p99 latency", False, "{:,.0f} µs")
TIME = Metric("seconds", "time", False, "{:.2f} s")
MEMORY = Metric("bytes_per_connection", "memory a connection", False, "{:,.0f} B")
PEAK_MEMORY = Metric("peak_memory_mib", "peak memory", False, "{:.1f} MiB")
BARE_WRITES = Metric("bare_writes", "median latency, in bare writes", False, "{:.2f}x")
LONGEST_BLOCK = Metric("longest_block_ms", "longest block", False, "{:.1f} ms")
SCANNED = Metric("scanned_per_second", "messages read a second", True, "{:,.0f}/s")
STORED = Metric("stored_bytes", "bytes on disk a message", False, "{:,.0f} B")
FIRST_MESSAGE = Metric("first_message_ms", "time to the first message", False, "{:.1f} ms")
FIRST_RARE = Metric("first_rare_ms", "time to the first message", False, "{:.1f} ms")

# What Pyrite has to reach, by broker and peer: its figure divided by the peer's, at least this much
# where more is better, else at most. With ITSELF as the peer it is the figure itself. A peer "@ID" is
# the same broker in the scenario ID.
ITSELF = ""
Floors = dict[tuple[str, str], float]


def _both(pure: str, peer: str, floor: float) -> Floors:
    """Return the same floor for pure Python and compiled modules."""
    return {(pure, peer): floor, (pure.replace(PYRITE, COMPILED), peer): floor}


def _kept(share: float) -> Floors:
    """Return the share of its throughput in memory that Pyrite has to keep with the log."""
    return {(PYRITE, EPHEMERAL): share, (COMPILED, COMPILED_EPHEMERAL): share}


def _share(scenario: str, share: float, *ours: str) -> Floors:
    """Return the share of its figure in another scenario that Pyrite has to reach."""
    return {(one, f"@{scenario}"): share for one in ours or OURS}


@dataclass(frozen=True)
class Scenario:
    """One row of the comparison.

    `then` is a second load, put on the broker after the first: only its faults count.
    `probe` is what else a run measures. `measured_by` names the scenario whose runs give this figure, too.
    """

    id: str
    title: str
    arguments: tuple[str, ...]
    metric: Metric = DELIVERED
    floors: Floors = field(default_factory=dict)
    brokers: tuple[str, ...] = USUAL
    setup: Literal["", "rules", "tls"] = ""
    warmup: float = 0.5
    seconds: float = 0
    """The least measured time of a run."""
    runs: int = 100
    """The most runs, where one takes long."""
    then: tuple[str, ...] = ()
    probe: Literal["", "bare writes", "longest block", "scan", "stored bytes", "replay"] = ""
    measured_by: str | None = None
    is_goal: bool = False
    """Whether `--goals` measures it."""

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


# Ordinary work: JSON objects of 58 to 172 bytes, no two alike.
TELEMETRY = (
    Scenario(
        "telemetry-qos0",
        "a gateway publishes for 1,000 devices, each with its own topic; 1 subscriber of all; QoS 0",
        (*JSON_1000, *WINDOW_0),
        floors={**_both(EPHEMERAL, "nats", 2), **_kept(0.65)},
        brokers=BASIC,
        is_goal=True,
    ),
    Scenario(
        "telemetry-qos1",
        "the same, QoS 1, window 1,000",
        (*JSON_1000, *WINDOW_1),
        floors={**_both(EPHEMERAL, "nats", 15), **_kept(0.5)},
        brokers=(*BASIC, "nats-sync"),
        is_goal=True,
    ),
    Scenario(
        "telemetry-qos2",
        "the same, QoS 2, window 1,000",
        (*JSON_1000, *WINDOW_2),
        floors=_both(EPHEMERAL, "nats", 25),
        is_goal=True,
    ),
    Scenario(
        "telemetry-rules-qos0",
        "telemetry-qos0 with a user and ten access rules, among them %u/#",
        (*JSON_1000, *WINDOW_0, "--user", "bench"),
        floors={**_share("telemetry-qos0", 0.8), **_kept(0.65)},
        brokers=OURS,
        setup="rules",
        is_goal=True,
    ),
    Scenario(
        "telemetry-rules-qos1",
        "telemetry-qos1 with a user and ten access rules, among them %u/#",
        (*JSON_1000, *WINDOW_1, "--user", "bench"),
        floors={**_share("telemetry-qos1", 0.8), **_kept(0.5)},
        brokers=OURS,
        setup="rules",
        is_goal=True,
    ),
    Scenario(
        "telemetry-tls-qos0",
        "telemetry-qos0 over TLS 1.3",
        (*JSON_1000, *WINDOW_0, "--tls"),
        floors={**_both(EPHEMERAL, "mosquitto", 1.5), **_kept(0.65)},
        brokers=WITHOUT_NATS,
        setup="tls",
        is_goal=True,
    ),
    Scenario(
        "telemetry-tls-qos1",
        "telemetry-qos1 over TLS 1.3",
        (*JSON_1000, *WINDOW_1, "--tls"),
        floors={**_both(EPHEMERAL, "mosquitto", 1.5), **_kept(0.5)},
        brokers=WITHOUT_NATS,
        setup="tls",
        is_goal=True,
    ),
    Scenario(
        "telemetry-100k",
        "telemetry-qos0 with 100,000 topics in turn",
        ("throughput", "--json", "--topics", "100000", "--per-publisher", "100000", *WINDOW_0),
        floors={**_share("telemetry-qos0", 0.7), **_kept(0.65)},
        warmup=1,
        is_goal=True,
    ),
    Scenario(
        "telemetry-1m",
        "telemetry-qos0 with 1,000,000 topics in turn",
        ("throughput", "--json", "--topics", "1000000", "--per-publisher", "1000000", *WINDOW_0),
        floors={**_share("telemetry-qos0", 0.7), **_kept(0.65)},
        brokers=(*OURS, "mosquitto"),
        warmup=3,
        is_goal=True,
    ),
    Scenario(
        "telemetry-1m-memory",
        "the largest resident size of the broker in telemetry-1m",
        (),
        metric=PEAK_MEMORY,
        brokers=(*OURS, "mosquitto"),
        measured_by="telemetry-1m",
        is_goal=True,
    ),
    Scenario(
        "telemetry-own-subscribers",
        "telemetry-qos0, but each of the 1,000 topics has its own subscriber",
        (*JSON_1000, *WINDOW_0, "--subscribers", "1000", "--one-to-one"),
        floors={**_share("telemetry-qos0", 0.4), **_kept(0.65)},
        is_goal=True,
    ),
    Scenario(
        "telemetry-v5",
        "telemetry-qos0 with MQTT 5, content type and a user property of varying length",
        (*JSON_1000, *WINDOW_0, "--mqtt", "5", "--properties"),
        metric=CPU,
        floors=_both(EPHEMERAL, ITSELF, 2),
        brokers=WITHOUT_NATS,
        is_goal=True,
    ),
    Scenario(
        "telemetry-retained",
        "telemetry-qos0 with retained messages",
        (*JSON_1000, *WINDOW_0, "--retain"),
        metric=CPU,
        floors=_both(EPHEMERAL, ITSELF, 2),
        is_goal=True,
    ),
    Scenario(
        "telemetry-single-writes",
        "telemetry-qos0, one packet per write and segment",
        (*JSON_1000, *WINDOW_0, "--one-packet-per-write"),
        floors={**_both(EPHEMERAL, "nats", 0.9), **_kept(0.65)},
        is_goal=True,
    ),
    Scenario(
        "telemetry-fan-in",
        "200 publishers, one packet per write and segment, 1 subscriber of all, QoS 0",
        (
            *("throughput", "--json", "--publishers", "200", "--topics", "200"),
            *(*WINDOW_0, "--one-packet-per-write"),
        ),
        floors=_kept(0.65),
    ),
    Scenario(
        "telemetry-fan-out",
        "1 publisher, 1 topic, 100 subscribers, QoS 1",
        ("throughput", "--json", "--subscribers", "100", *WINDOW_1),
        floors={**_both(EPHEMERAL, "nats", 12), **_kept(0.5)},
        is_goal=True,
    ),
    Scenario(
        "telemetry-connections",
        "1,000 publishers, each sends its next QoS 1 message after the PUBACK of its last; no subscriber",
        (*NO_SUBSCRIBER, "--publishers", "1000", "--topics", "1000", "--window", "1"),
        metric=ACKNOWLEDGED,
        floors={
            (EPHEMERAL, "mosquitto"): 0.8,
            (PYRITE, "mosquitto"): 0.6,
            (COMPILED_EPHEMERAL, "mosquitto"): 1.2,
            (COMPILED, "mosquitto"): 0.9,
        },
        warmup=1,
        is_goal=True,
    ),
    Scenario(
        "telemetry-pairs",
        "1,000 publishers, each with its own topic and subscriber, QoS 1, 1,000 messages/s in total",
        ("paced", *PAIRS, "--qos", "1", "--rate", "1000"),
        metric=CPU,
        floors={**_both(EPHEMERAL, ITSELF, 60), **_both(PYRITE, ITSELF, 100)},
        warmup=2,  # a broker may still be busy with the 2,000 connections and 1,000 subscriptions just made
        seconds=2,
        probe="bare writes",
        is_goal=True,
    ),
    Scenario(
        "telemetry-pairs-p50",
        "telemetry-pairs: median latency",
        (),
        metric=P50,
        measured_by="telemetry-pairs",
        is_goal=True,
    ),
    Scenario(
        "telemetry-pairs-disk",
        "telemetry-pairs: median latency, divided by a bare write of 1 KiB and fdatasync on the same disk",
        (),
        metric=BARE_WRITES,
        floors=_both(PYRITE, ITSELF, 2),
        brokers=LOG_ON,
        measured_by="telemetry-pairs",
        is_goal=True,
    ),
    Scenario(
        "telemetry-pairs-p99",
        "telemetry-pairs: 99th percentile of the latency",
        (),
        metric=P99,
        measured_by="telemetry-pairs",
        is_goal=True,
    ),
    Scenario(
        "telemetry-slow",
        "100 messages/s for 10 s, of 115 bytes on average; size of the data folder while the segment is open",
        ("paced", "--json", "--topics", "100", "--per-publisher", "100", "--qos", "1", "--subscribers", "0",
         "--rate", "100"),
        metric=STORED,
        floors=_both(PYRITE, ITSELF, 250),
        brokers=LOG_ON,
        warmup=0,
        seconds=10,
        probe="stored bytes",
        is_goal=True,
    ),
    Scenario(
        "telemetry-replay",
        "replay from earliest, filtered by 1 of 1,000 topics, over 1,000,000 messages that came 16 at a time",
        ("fill", "--json", "--topics", "1000", "--per-publisher", "1000", "--qos", "1", "--subscribers", "0",
         "--window", "16", "--messages", "1000000"),
        metric=FIRST_MESSAGE,
        floors=_both(PYRITE, ITSELF, 50),
        brokers=LOG_ON,
        runs=1,
        probe="replay",
        is_goal=True,
    ),
    Scenario(
        "telemetry-replay-rare",
        "telemetry-replay, but filtered by a topic whose only message is the last",
        (),
        metric=FIRST_RARE,
        brokers=LOG_ON,
        measured_by="telemetry-replay",
        is_goal=True,
    ),
)  # fmt: skip

# Connections, and the log.
OTHERS = (
    Scenario(
        "connect",
        "9,000 connections, up to 1,000 being opened at a time",
        ("connect", "--connections", str(CONNECTIONS), "--in-progress", "1000"),
        metric=TIME,
        floors={(EPHEMERAL, "nats"): 1.5, (EPHEMERAL, "mosquitto"): 1},
    ),
    Scenario(
        "connect-gentle",
        "9,000 connections, up to 64 at a time: no accept queue overflows",
        ("connect", "--connections", str(CONNECTIONS), "--in-progress", "64"),
        metric=TIME,
    ),
    Scenario(
        "memory",
        "memory (PSS growth) an idle connection, of 9,000",
        (),
        metric=MEMORY,
        floors={(EPHEMERAL, "nats"): 0.25, (EPHEMERAL, "mosquitto"): 2},
        measured_by="connect",
    ),
    Scenario(
        "qos1-publish",
        "4 publishers of 250 topics each, JSON, no subscriber, QoS 1, window 1,000 each",
        FOUR_PUBLISHERS,
        metric=ACKNOWLEDGED,
        floors={(PYRITE, "nats-sync"): 40},
        brokers=DURABLE,
    ),
    Scenario(
        "qos1-single",
        "1 publisher, JSON, no subscriber, QoS 1, the next message after the PUBACK of the last",
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
        floors=_both(PYRITE, ITSELF, 2.5),
        brokers=(*LOG_ON, "nats-sync"),
        measured_by="qos1-single",
    ),
    Scenario(
        "catch-up",
        "a session returns after 1,000,000 JSON messages of 1,000 topics, QoS 1; from CONNECT to the last",
        ("catch-up", *JSON_1000[1:], *WINDOW_1, "--messages", "1000000"),
        floors={(PYRITE, ITSELF): 300_000},
        brokers=(*LOG_ON, "mosquitto"),
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
        "the longest block of the event loop by anything, under telemetry-qos1 and then telemetry-qos0",
        (*JSON_1000, *WINDOW_1),
        metric=LONGEST_BLOCK,
        floors={(PYRITE, ITSELF): 5, (EPHEMERAL, ITSELF): 5},
        brokers=OURS,
        then=(*JSON_1000, *WINDOW_0),
        probe="longest block",
    ),
)

# Floods: a publisher repeats one topic and one payload size (with random bytes). Packets that look alike are
# the easiest work there is for Pyrite; few users have it.
FLOODS = (
    Scenario(
        "flood-qos0",
        "1 publisher, 1 topic, payloads of 64 bytes, 1 subscriber, QoS 0",
        FLOOD_0,
        floors=_kept(0.65),
        brokers=BASIC,
        is_goal=True,
    ),
    Scenario(
        "flood-qos1", "the same, QoS 1, window 1,000", FLOOD_1, brokers=(*DURABLE, "amqtt"), is_goal=True
    ),
    Scenario("flood-qos2", "the same, QoS 2, window 1,000", ("throughput", *WINDOW_2)),
    Scenario(
        "flood-fan-out",
        "flood-qos0 with 100 subscribers",
        ("throughput", "--subscribers", "100", "--window", "1000"),
        is_goal=True,
    ),
)

ALL = (*TELEMETRY, *OTHERS, *FLOODS)

# What the generator does against a mere byte-forwarder, to show whether it limits a broker above.
CEILINGS = ("telemetry-qos0", "telemetry-single-writes", "telemetry-fan-in", "flood-qos0", "flood-fan-out")


def matching(patterns: str) -> list[Scenario]:
    """Return the scenarios whose ids match one of the patterns, which are separated by commas."""
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    return [one for one in ALL if any(fnmatchcase(one.id, pattern) for pattern in wanted)]
