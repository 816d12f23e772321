"""What must hold after all faults are healed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from pyrite.storage.segment import Damage
from pyrite.storage.stream import StreamReader
from tests.cluster.nemesis.clients import Publisher, Subscriber
from tests.cluster.nemesis.nodes import Node

COLUMNS = ("offset", "topic", "payload")
Row = tuple[int, str, bytes]
"""Offset, topic, payload."""


def log_of(node: Node) -> list[Row]:
    """Return the log of a node that has stopped."""
    return list(_rows(node))


def _rows(node: Node) -> Iterator[Row]:
    for batch in StreamReader(node.data / "streams" / "default").read(0, columns=COLUMNS):
        assert not isinstance(batch, Damage), f"the log of {node.name} is damaged: {batch}"
        yield from zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True)


def compare_logs(nodes: Sequence[Node]) -> tuple[list[Row], list[str]]:
    """Return the log of the first node, and where others differ."""
    logs = {node.name: log_of(node) for node in nodes}
    first_name, first = next(iter(logs.items()))
    wrong = []
    for name, log in logs.items():
        if log != first:
            at = next((at for at, pair in enumerate(zip(first, log, strict=False)) if pair[0] != pair[1]), -1)
            wrong.append(
                f"the logs of {first_name} ({len(first)} messages) and {name} ({len(log)}) differ at {at}"
            )
    if [row[0] for row in first] != [*range(len(first))]:
        wrong.append("the offsets have gaps")
    return first, wrong


def check_publishers(log: Sequence[Row], publishers: Sequence[Publisher]) -> list[str]:
    """Return what is wrong with the messages of the publishers in the log."""
    wrong = []
    numbers: dict[str, list[int]] = defaultdict(list)
    for _, _, payload in log:
        name, _, number = payload.decode().partition(" ")
        numbers[name].append(int(number))
    for publisher in publishers:
        mine = numbers[publisher.name]
        counts = Counter(mine)
        missing = sorted(publisher.acknowledged - counts.keys())
        if missing:
            wrong.append(f"{publisher.name}: acknowledged and not in the log: {missing[:10]}")
        if publisher.qos == 2:
            twice = [number for number, count in counts.items() if count > 1]
            if twice:
                wrong.append(f"{publisher.name}: QoS 2 and more than once in the log: {twice[:10]}")
        wrong += [f"{publisher.name}: out of order in the log: {pair}" for pair in _disorder(mine)[:3]]
    return wrong


def check_subscriber(subscriber: Subscriber, publishers: Sequence[Publisher], exact: bool) -> list[str]:
    """Return what is wrong with what a subscriber received; `exact` if QoS 2 applied."""
    wrong = []
    for publisher in publishers:
        mine = subscriber.received[publisher.name]
        counts = Counter(mine)
        missing = sorted(publisher.acknowledged - counts.keys())
        if missing:
            wrong.append(f"{subscriber.name} did not receive of {publisher.name}: {missing[:10]}")
        if exact and publisher.qos == 2:
            twice = [number for number, count in counts.items() if count > 1]
            if twice:
                wrong.append(f"{subscriber.name} received of {publisher.name} more than once: {twice[:10]}")
        wrong += [
            f"{subscriber.name} received of {publisher.name} out of order: {pair}"
            for pair in _disorder(mine)[:3]
        ]
    return wrong


def check_shared(members: Sequence[Subscriber], publishers: Sequence[Publisher]) -> list[str]:
    """Return what no member of a shared subscription received."""
    wrong = []
    for publisher in publishers:
        received = {number for member in members for number in member.received[publisher.name]}
        missing = sorted(publisher.acknowledged - received)
        if missing:
            wrong.append(f"no member of the shared subscription received of {publisher.name}: {missing[:10]}")
    return wrong


def _disorder(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return pairs of which the second comes for the first time, and is smaller than one before."""
    seen: set[int] = set()
    first = [number for number in numbers if not (number in seen or seen.add(number))]  # type: ignore[func-returns-value]
    return [(one, other) for one, other in pairwise(first) if other < one]
