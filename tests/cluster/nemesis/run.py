"""One run: workload, faults, healing, checks."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.nemesis.check import check_publishers, check_shared, check_subscriber, compare_logs
from tests.cluster.nemesis.clients import Publisher, Subscriber
from tests.cluster.nemesis.faults import FAULTS, hold, injected
from tests.cluster.nemesis.nodes import Cluster, cluster
from tests.support.waiting import wait_until

MEMBERS = 0
SHORTEST, LONGEST = 2.0, 12.0
"""Seconds that a fault lasts."""
PATIENCE = 120.0
"""Seconds for everything outstanding to be acknowledged and delivered after healing."""


@dataclass
class Report:
    """What happened in a run."""

    seed: int
    seconds: float = 0.0
    faults: list[tuple[float, str, str, float]] = field(default_factory=list)
    """When, which, what, and how many seconds until all nodes were equal after healing."""
    sent: int = 0
    acknowledged: int = 0
    refused: int = 0
    delivered: int = 0
    duplicates: int = 0
    """Messages of QoS 1 that are in the log more than once, because their publisher sent them again."""
    logged: int = 0
    connections: int = 0
    wrong: list[str] = field(default_factory=list)


def nemesis(folder: Path, seconds: float, seed: int, only: list[str] | None = None) -> Report:
    """Run a cluster under faults for a while, and check it."""
    with cluster(folder) as nodes:
        return _Run(nodes, seconds, seed, only or [*FAULTS]).run()


class _Run:
    def __init__(self, nodes: Cluster, seconds: float, seed: int, names: list[str]) -> None:
        self._nodes = nodes
        self._seconds = seconds
        self._choice = random.Random(seed)
        self._names = names
        self.report = Report(seed)
        addresses = [node.address for node in nodes.nodes]
        self._publishers = [
            Publisher(f"publisher-{qos}-{number}", addresses, seed, qos)
            for qos in (1, 2)
            for number in range(3)
        ]
        self._all = [
            Subscriber(f"subscriber-{number}", addresses, seed, "nemesis/#", 2) for number in range(2)
        ]
        self._members = [
            Subscriber(f"member-{number}", addresses, seed, "$share/g/nemesis/#", 1)
            for number in range(MEMBERS)
        ]

    def run(self) -> Report:
        subscribers = [*self._all, *self._members]
        for subscriber in subscribers:
            subscriber.start()
        wait_until(lambda: all(one.subscribed.is_set() for one in subscribers), "all subscribed", 60)
        for publisher in self._publishers:
            publisher.start()
        began = time.monotonic()
        try:
            self._inject(began, began + self._seconds)
            self._finish()
        except AssertionError as error:  # something was waited for in vain: check the rest all the same
            self.report.wrong.append(str(error))
        finally:
            for client in [*self._publishers, *subscribers]:
                client.stop()
        self.report.seconds = time.monotonic() - began
        for node in self._nodes.nodes:
            node.stop()
        self._check()
        return self.report

    def _inject(self, began: float, until: float) -> None:
        pending: list[str] = []
        while time.monotonic() < until:
            if not pending:  # each once before any comes again
                pending = self._choice.sample(self._names, len(self._names))
            name = pending.pop()
            victim = self._choice.choice(self._nodes.nodes)
            at = time.monotonic() - began
            with injected(FAULTS[name], self._nodes, victim, self._choice) as what:
                hold(self._choice.uniform(SHORTEST, LONGEST), until)
            healed = time.monotonic()
            self._progress()
            took = time.monotonic() - healed
            self.report.faults.append((at, name, f"{victim.name} {what}", took))
            print(f"{at:6.0f} s  {name:12}  {victim.name} {what}; all went on after {took:.1f} s", flush=True)

    def _progress(self) -> None:
        """Wait until every publisher gets acknowledgements, and every node answers."""
        before = {one: len(one.acknowledged) for one in self._publishers}
        for one, count in before.items():
            what = f"{one.name} gets acknowledgements"
            wait_until(lambda one=one, count=count: len(one.acknowledged) > count, what, PATIENCE)  # type: ignore[misc]
        wait_until(
            lambda: all((node.state() or {}).get("has_quorum") for node in self._nodes.nodes),
            "every node has a quorum",
            PATIENCE,
        )

    def _stuck(self, before: list[int]) -> object:
        return [
            one.name for one, n in zip(self._publishers, before, strict=True) if len(one.acknowledged) <= n
        ]

    def _finish(self) -> None:
        """Wait until everything is acknowledged and delivered."""
        for publisher in self._publishers:
            publisher.is_paused = True
        wait_until(
            lambda: all(not one.outstanding for one in self._publishers), "nothing outstanding", PATIENCE
        )
        wait_until(self._is_delivered, "everything delivered", PATIENCE)
        self._nodes.settle()

    def _is_delivered(self) -> bool:
        if not self._members:
            return not any(check_subscriber(one, self._publishers, False) for one in self._all)
        everywhere = not any(check_subscriber(one, self._publishers, False) for one in self._all)
        return everywhere and not check_shared(self._members, self._publishers)

    def _check(self) -> None:
        report, publishers = self.report, self._publishers
        log, wrong = compare_logs(self._nodes.nodes)
        report.wrong += wrong
        report.wrong += check_publishers(log, publishers)
        for subscriber in self._all:
            report.wrong += check_subscriber(subscriber, publishers, True)
        if self._members:
            report.wrong += check_shared(self._members, publishers)
        for node in self._nodes.nodes:
            for line in node.log:
                expected = "No space left" in line or "disk is full" in line
                if "internal error" in line or ("this node stops" in line and not expected):
                    report.wrong.append(f"node {node.name}: {line}")
        report.sent = sum(one.sent for one in publishers)
        report.acknowledged = sum(len(one.acknowledged) for one in publishers)
        report.refused = sum(len(one.refused) for one in publishers)
        received = [numbers for one in [*self._all, *self._members] for numbers in one.received.values()]
        report.delivered = sum(map(len, received))
        report.logged = len(log)
        report.duplicates = len(log) - len({payload for _, _, payload in log})
        report.connections = sum(one.connections for one in [*publishers, *self._all, *self._members])
