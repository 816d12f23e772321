"""Every attack: what it does, what bounds it, and the counts that prove that it took place."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.hostile.attacks import IDLE

SCHEMES = ("mqtt", "ws", "line", "udp", "http", "flight", "mqtts", "wss", "https", "flights", "unix")
GUARDED_SCHEMES = ("mqtt", "ws", "line", "http", "flight", "wss")
STREAMS = {scheme: 1 for scheme in SCHEMES if scheme != "udp"}
TURNS = "turns of 2 ms"


@dataclass(frozen=True)
class About:
    """One attack. The two texts are a row of docs/security.md."""

    attack: str
    bound: str
    least: dict[str, int] = field(default_factory=dict)
    """Counts that the attack must reach to be one."""
    most: dict[str, int] = field(default_factory=dict)
    """Counts that it must not exceed."""
    growth: int | None = None
    """MiB by which no process may grow while the attack lasts, if it is an attack on memory."""
    guarded: bool = False
    """Whether it is made on the broker that has users and rules."""


CATALOGUE = {
    "slow_loris": About(
        "400 connections on all ports send a byte at a time",
        "`connect_timeout`, `before_login`",
        {"opened": 300, "bytes": 1_000, **(STREAMS | {"flight": 0})},
    ),
    "half_open": About(
        "400 connections that say nothing, or subscribe to `#` and do not read",
        "`connect_timeout`, `max_waiting_bytes`",
        {"opened": 300, **STREAMS},
    ),
    "idle_with_churn": About(
        "10,000 idle clients, 50 of which go and come at a time",
        f"{TURNS}, `max_connections`",
        {"idle": IDLE, "churned": 50},
    ),
    "connection_flood": About(
        "connect and disconnect as fast as possible on all ports, half with TLS",
        f"{TURNS}, `max_connections_per_address`",
        {**dict.fromkeys(SCHEMES, 3), "inside TLS": 3},
    ),
    "subscription_bomb": About(
        "thousands of deep wildcard filters, and topics that may match them",
        f"{TURNS}, `max_subscriptions_per_client`",
        {"filters": 200, "filters on lines": 200, "left": 4},
    ),
    "retained_bomb": About(
        "set ever more retained messages and remove them all",
        f"{TURNS}, quota `retained_bytes`",
        {"topics": 300, "taken back": 300},
    ),
    "huge_topics": About(
        "publish and subscribe with topics of 65,000 bytes, each another",
        f"{TURNS}, bounded caches",
        {"topics": 5, "topics on lines": 5},
    ),
    "collisions": About(
        "50 clients take one client id from each other on three protocols",
        TURNS,
        {"mqtt": 10, "line": 10, "unix": 10},
    ),
    "api_requests": About(
        "ask the HTTP API for all it has, in the largest pages",
        "a process of its own, pages, turns of 2 ms",
        {"answers": 8},
    ),
    "random_bytes": About(
        "random bytes on all ports, inside TLS and outside",
        "parsers that check lengths first",
        {**dict.fromkeys(SCHEMES, 3), "inside TLS": 3},
    ),
    "line_ack_ranges": About(
        "line `Ack` with up to 1,500 ranges of 0-65535, by TCP and UDP",
        f"1,000 words a line, {TURNS}",
        {"lines": 20, "datagrams": 1},
    ),
    "huge_connects": About(
        "three strangers send CONNECT full of properties, of 60 KB and of 16 MiB",
        "`before_login`, 512 properties a packet",
        dict.fromkeys(("mqtt", "ws", "unix", "mqtts", "wss"), 1),
    ),
    "full_packets": About(
        "PUBLISH, SUBSCRIBE and UNSUBSCRIBE with 512 properties and 1,000 filters",
        f"limits per packet, {TURNS}",
        {"PUBLISH": 2, "SUBSCRIBE": 2, "UNSUBSCRIBE": 2},
    ),
    "alternating_acknowledgements": About(
        "PUBREL and PUBREC in turn, 256 and 512 KiB at a time", TURNS, {"mqtt": 1, "ws": 1, "unix": 1}
    ),
    "unknown_ids": About(
        "acknowledgements of all kinds with unknown ids, 256 KiB at a time",
        TURNS,
        {"mqtt": 1, "ws": 1, "unix": 1},
    ),
    "repeated_ids": About(
        "QoS 2 messages with the same ids again and again, 256 KiB at a time",
        TURNS,
        {"mqtt": 1, "ws": 1, "unix": 1},
    ),
    "refused_messages": About(
        "QoS 1 and 2 messages and lines that a rule refuses, each on another topic",
        TURNS,
        {"mqtt": 1, "ws": 1, "lines": 1},
        guarded=True,
    ),
    "lists_of_topics": About(
        "list 10,000 topics with retained messages (50,000 in `make soak`), 40 times at once, "
        "by request, subscription, line and HTTP",
        f"cursors, {TURNS}",
        {"requested": 100, "subscribed": 100, "lines": 100, "pages": 1},
    ),
    "runs_to_many": About(
        "runs of small messages to 100 subscribers, some of which acknowledge nothing",
        f"{TURNS}, `max_waiting_bytes`, `max_buffered_bytes`",
        {"runs": 1, "bytes": 100},
    ),
    "shared_subscriptions": About(
        "10,000 shared subscriptions leave at once, again and again",
        f"{TURNS}, `max_subscriptions_per_client`",
        {"left": 10_000},
    ),
    "requests_without_rights": About(
        "publish and retain a megabyte at a time under `$pyrite/`; requests with 60 KB of JSON",
        "rights before work; requests are never published",
        {"retained": 1, "requests": 1, "lines": 1, "refused over HTTP": 1},
        growth=128,
        guarded=True,
    ),
    "all_sessions_and_consumers": About(
        "one user takes all sessions and consumers that it can, while another logs in",
        "quotas `sessions` and `consumers`",
        {
            "sessions": 500,
            "sessions refused": 1,
            "create: count": 1_000,
            "create: error": 1,
            "delete: count": 1_000,
            "others let in": 1,
        },
        {"sessions": 500, "create: count": 1_000, "longest others let in, ms": 10_000},
        guarded=True,
    ),
    "resuming_sessions": About(
        "300 sessions resume at once, next to the catch-up of another user",
        "reads take turns over users and clients",
        {"resumed": 1, "catch-ups": 1, "ended": 300},
        {"longest catch-ups, ms": 30_000},
        guarded=True,
    ),
    "long_polls": About(
        "900 HTTP pulls of one user wait, next to pulls of another user",
        "quota `concurrent_reads`, 1,000 HTTP connections",
        {"waited": 50, "refused": 1, "pulls of another user": 1},
        {"longest pulls of another user, ms": 15_000},
        guarded=True,
    ),
    "large_bodies": About(
        "POST 21 MB of user properties where everyone may publish",
        "256 KiB of user properties, 256 MiB of bodies",
        {"refused": 1},
        {"let in": 0},
    ),
    "unauthenticated_bodies": About(
        "POST 21 MB without a log-in",
        "rights before bodies",
        {"refused": 1},
        {"let in": 0},
        growth=128,
        guarded=True,
    ),
    "unfinished_bodies": About(
        "1,000 unfinished HTTP heads and bodies, while /ready and /metrics are asked",
        "200 strangers an address, the oldest make way",
        {"begun": 1_000, "/ready": 1, "/metrics": 1},
        {"longest /ready, ms": 15_000, "longest /metrics, ms": 15_000},
        guarded=True,
    ),
    "unfinished_connects": About(
        "700 strangers hold a CONNECT of 64 KiB or 1 MiB without its last byte",
        "`before_login`, `connect_timeout`",
        {"begun": 700},
        growth=160,
    ),
    "compressed_batches": About(
        "Flight batches of 200 MiB, compressed to a few KB",
        "rights first, no compression",
        {"refused": 2},
        {"taken": 0},
        growth=128,
        guarded=True,
    ),
    "foreign_pages": About(
        "pages of other sites ask for `wss://`, with the client certificate of the browser's user",
        "`Origin` is checked",
        {"refused": 3},
        {"let in": 0},
        guarded=True,
    ),
    "pings_instead_of_a_log_in": About(
        "50 line connections send Ping and never log in",
        "`connect_timeout`, which Ping does not extend",
        {"ended": 50, "pings": 50},
        {"longest ended, ms": 15_000},
        guarded=True,
    ),
}
