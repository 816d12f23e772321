"""The subscription tree with 1,000,000 filters, half with wildcards: `python -m benchmarks.routing`."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Sequence
from typing import Any, cast

from pyrite.broker.subscriptions import Subscription, SubscriptionTree

FILTERS = 1_000_000
SESSIONS = 1_000
TOPICS = 20_000  # topics routed for the first time
LOOK_UPS = 1_000_000


class _Subscriber:
    """Stands where a session does: the tree only asks it to be hashable."""


def _filter(number: int) -> bytes:
    """Return a distinct filter for each number: half exact, a quarter with +, a quarter with #."""
    site, device = number % 1000, number // 1000
    match number % 4:
        case 0:
            return b"site/%d/+/%d/temperature" % (site, device)
        case 2:
            return b"site/%d/line/%d/#" % (site, device)
        case _:
            return b"site/%d/line/%d/temperature" % (site, device)


def build(count: int) -> SubscriptionTree:
    """Return a tree of `count` filters, of 1,000 sessions."""
    tree = SubscriptionTree()
    sessions = [_Subscriber() for _ in range(SESSIONS)]
    for number in range(count):
        tree.add(Subscription(cast(Any, sessions[number % SESSIONS]), _filter(number)))
    return tree


def cached_ns(tree: SubscriptionTree) -> float:
    """Return the nanoseconds of routing a topic that was routed before: the median of 5 times a million."""
    topic = b"site/1/line/0/temperature"
    tree.route(topic)
    route, times = tree.route, []
    for _ in range(5):
        start = time.perf_counter_ns()
        for _ in range(LOOK_UPS):
            route(topic)
        times.append((time.perf_counter_ns() - start) / LOOK_UPS)
    return statistics.median(times)


def uncached_ns(tree: SubscriptionTree) -> Sequence[int]:
    """Return the nanoseconds of each of many first routings, sorted; the topics spread over all filters."""
    topics = [b"site/%d/line/%d/temperature" % (n * 7 % 1000, n * 13 % 1000) for n in range(TOPICS)]
    times = []
    for topic in dict.fromkeys(topics):
        start = time.perf_counter_ns()
        tree.route(topic)
        times.append(time.perf_counter_ns() - start)
    return sorted(times)


def measure() -> list[tuple[str, str]]:
    """Measure all, and return it as (what, figure) rows."""
    few = build(10)
    start = time.perf_counter()
    many = build(FILTERS)
    built = time.perf_counter() - start
    gc.collect()
    gc.freeze()  # the collector need not walk a million filters in the middle of a measurement
    try:
        rows = [("time to add 1,000,000 filters", f"{built:.1f} s ({1e6 * built / FILTERS:.1f} µs each)")]
        for name, tree in (("10 filters", few), (f"{FILTERS:,} filters", many)):
            times = uncached_ns(tree)
            middle, p99 = statistics.median(times) / 1e3, times[len(times) * 99 // 100] / 1e3
            rows.append((f"a topic's first routing, {name}", f"median {middle:.2f} µs, p99 {p99:.2f} µs"))
        for name, tree in (("10 filters", few), (f"{FILTERS:,} filters", many)):
            rows.append((f"a topic routed before, {name}", f"{cached_ns(tree):.0f} ns"))
    finally:
        gc.unfreeze()
    return rows


def main() -> None:
    """Print the measurements."""
    for what, figure in measure():
        print(f"{what:<45} {figure}")


if __name__ == "__main__":
    main()
