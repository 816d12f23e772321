"""After a rush, when it is quiet, Python is asked to let go of what it keeps."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterator

import pytest

from pyrite.broker.core import FEW_MESSAGES, Broker
from pyrite.broker.session import Session
from pyrite.protocols.mqtt.connection import Connection
from pyrite.server import memory
from pyrite.server.config import Config
from pyrite.server.memory import Memory
from pyrite.server.server import Server
from tests.conformance.wire import connect_packet


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """Note the collections of all objects."""
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
    return [float(number) for number in range(2 * memory.MANY)]


def test_once_after_a_rush(collections: list[int]) -> None:
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


def test_names_and_routes_are_forgotten() -> None:
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
    assert not broker.subscriptions.routes


def test_not_while_many_messages_come(collections: list[int]) -> None:
    broker, watched = Broker(), Memory()
    many = rush()
    a_second(broker, watched)
    many.clear()
    a_second(broker, watched, FEW_MESSAGES)
    assert collections == []
    a_second(broker, watched)
    assert collections == [1]


def test_not_with_many_sessions_who_would_notice(
    collections: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "FEW_SESSIONS", 1)
    broker, watched = Broker(), Memory()
    broker.sessions = {name: Session(broker, name) for name in ("a", "b")}
    many = rush()
    a_second(broker, watched)
    many.clear()
    a_second(broker, watched)
    assert collections == []


def connections() -> set[int]:
    """Return where in memory there are connections."""
    return {id(one) for one in gc.get_objects() if isinstance(one, Connection)}


def test_a_connection_that_is_over_is_gone_without_a_search(collections: list[int]) -> None:
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
            async with asyncio.timeout(10):
                while server.connections.all:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            return connections().isdisjoint(places)
        finally:
            await server.stop()

    assert asyncio.run(come_and_go())
    assert collections == []
