"""When traffic is low after a burst, garbage is collected and caches are trimmed."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Iterator

import pytest

from pyrite.broker.core import QUIET_MESSAGES, Broker
from pyrite.protocols.mqtt.connection import Connection
from pyrite.server import memory
from pyrite.server.config import Config
from pyrite.server.memory import Memory
from pyrite.server.server import Server
from tests.conformance.wire import connect_packet
from tests.support.waiting import until


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """Record full garbage collections."""
    found: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            found.append(1)

    gc.disable()
    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)
    gc.enable()


def a_second(broker: Broker, watched: Memory, messages: int = 0) -> None:
    for _ in range(memory.TICKS):
        broker.figures.publish_received += messages
        broker.tick(broker.now + 0.1)
        watched.tick(broker)


def rush() -> list[float]:
    return [float(number) for number in range(2 * memory.BURST)]


def test_garbage_is_collected_once_after_a_burst(collections: list[int]) -> None:
    broker, watched = Broker(), Memory()
    a_second(broker, watched)
    many = rush()
    a_second(broker, watched)
    assert collections == []  # it is not over
    many.clear()
    a_second(broker, watched)
    assert collections == [1]
    a_second(broker, watched)
    assert collections == [1]


def test_names_and_routes_are_trimmed_after_a_burst() -> None:
    broker, watched = Broker(), Memory()
    broker.subscriptions.route(b"a/b")
    name = "".join(("not", "_", "there"))  # made anew, as C does it
    references = sys.getrefcount(name)
    assert not hasattr(broker, name)
    assert sys.getrefcount(name) > references
    many = rush()
    a_second(broker, watched)
    many.clear()
    a_second(broker, watched)
    assert sys.getrefcount(name) == references
    assert not broker.subscriptions.cache.routes


def test_garbage_is_not_collected_during_a_burst(collections: list[int]) -> None:
    broker, watched = Broker(), Memory()
    many = rush()
    a_second(broker, watched)
    many.clear()
    a_second(broker, watched, QUIET_MESSAGES)
    assert collections == []
    a_second(broker, watched)
    assert collections == [1]


def test_old_garbage_is_not_collected_while_there_are_many_objects(collections: list[int]) -> None:
    broker, watched = Broker(), Memory()
    held = [float(number) for number in range(memory.MAX_SEARCHED)]
    many = rush()
    a_second(broker, watched)
    many.clear()
    a_second(broker, watched)
    assert collections == []
    del held


def test_young_garbage_is_collected_before_much_has_gathered() -> None:
    found: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            found.append(info["generation"])

    async def work() -> list[int]:
        server = Server(Config(ephemeral=True))
        server.memory.take_over()
        gc.callbacks.append(note)
        try:
            # As many objects are freed as are made: Python's own collector would not begin.
            old = [[number] for number in range(50_000)]
            began = time.monotonic()
            while time.monotonic() < began + 3 * memory.YOUNG_INTERVAL:
                server.at_work(lambda: [old.pop() for _ in range(10)])
            return found[:]
        finally:
            gc.callbacks.remove(note)
            gc.enable()
            gc.unfreeze()
            await server.stop()

    generations = asyncio.run(work())
    assert generations
    assert set(generations) == {0}


def connections() -> set[int]:
    """Return the addresses of connection objects in memory."""
    return {id(one) for one in gc.get_objects() if isinstance(one, Connection)}


def test_a_closed_connection_is_freed_without_the_garbage_collector(collections: list[int]) -> None:
    async def come_and_go() -> bool:
        server = Server(Config(listen=["mqtt://127.0.0.1:0"], ephemeral=True))
        (listener,) = await server.start()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(connect_packet("c"))
            await reader.read(1)
            places = {id(one) for one in server.connections.all}
            assert connections() & places
            writer.close()
            await until(lambda: not server.connections.all, "the broker has closed the connection")
            return connections().isdisjoint(places)
        finally:
            await server.stop()

    assert asyncio.run(come_and_go())
    assert collections == []
