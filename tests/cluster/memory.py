"""An ordered log in memory: the test decides what is stored, lost, repeated and delivered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from pyrite.cluster.order import Appended, OrderedLog, Position


class MemoryEngine:
    """The order of all groups."""

    def __init__(self) -> None:
        self.groups: list[bytes] = []
        self.leases: dict[str, bytes] = {}
        self.orders: list[MemoryOrder] = []

    def changed(self) -> None:
        """Tell all nodes that a lease has come or gone."""
        for order in list(self.orders):
            for call in order.on_leases:
                call()


class Append(NamedTuple):
    """A group that was appended and is not answered."""

    data: bytes
    done: Callable[[Appended], object]


class MemoryOrder(OrderedLog):
    """One node's way to the order."""

    max_size = 1 << 20

    def __init__(self, engine: MemoryEngine, max_size: int = 1 << 20) -> None:
        self.engine = engine
        self.max_size = max_size
        self.appends: list[Append] = []
        """Groups on their way."""
        self.delivered = 0
        self.paused = False
        self.reachable = True
        """Whether this node reaches a quorum."""
        self.on_leases: list[Callable[[], object]] = []
        self._deliver: Callable[[int, bytes], object] | None = None
        self._leases: list[str] = []
        engine.orders.append(self)

    def append(self, data: bytes, identity: str, done: Callable[[Appended], object]) -> None:
        self.appends.append(Append(data, done))

    def follow(
        self, after: int, deliver: Callable[[int, bytes], object], lost: Callable[[int], object]
    ) -> None:
        self.delivered = after
        self._deliver = deliver

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def position(self, answer: Callable[[Position | None], object]) -> None:
        answer(Position(1, len(self.engine.groups)) if self.reachable else None)

    @property
    def has_quorum(self) -> bool:
        return self.reachable

    def hold_lease(self, key: str, value: bytes) -> None:
        self._leases.append(key)
        self.engine.leases[key] = value
        self.engine.changed()

    @property
    def leases(self) -> Mapping[str, bytes]:
        return self.engine.leases

    def when_leases_change(self, call: Callable[[], object]) -> None:
        self.on_leases.append(call)

    async def close(self) -> None:
        self.end()

    # What the test does

    def end(self) -> None:
        """The node's process ends; its lease expires when the test says so."""
        self._deliver = None
        self.appends.clear()
        if self in self.engine.orders:
            self.engine.orders.remove(self)

    def take(self, at: int = 0, stored: bool = True, answered: bool = True, lies: bool = False) -> bool:
        """Let an append arrive, or be lost, and its answer too; return whether there was one.

        `lies`: the engine confirms the group, and loses it.
        """
        if not self.appends or not self.reachable:
            return False
        one = self.appends.pop(at % len(self.appends))
        if lies:
            one.done(Appended(len(self.engine.groups) + 1))
            return True
        if stored:
            self.engine.groups.append(one.data)
        sequence = len(self.engine.groups)
        one.done(Appended(sequence) if stored and answered else Appended(None, "no answer"))
        return True

    def repeat(self, at: int = 0) -> None:
        """Store an append twice: it stays on its way."""
        if self.appends and self.reachable:
            self.engine.groups.append(self.appends[at % len(self.appends)].data)

    def step(self) -> bool:
        """Deliver one group; return whether there was one."""
        if self._deliver is None or self.paused or not self.reachable:
            return False
        if self.delivered >= len(self.engine.groups):
            return False
        self.delivered += 1
        self._deliver(self.delivered, self.engine.groups[self.delivered - 1])
        return True
