"""The longest block of the event loop counts whatever blocked it."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from pyrite.broker.access import Access, Credentials
from pyrite.broker.timers import NO_SLOT
from pyrite.server.config import Config, Tls
from pyrite.server.server import Server
from tests.conformance.wire import connect_packet, publish_packet
from tests.server.conftest import Certificates
from tests.support.waiting import until

BLOCK = 0.05


class Slow(Access):
    """Blocks the event loop."""

    checks_topics = True

    def may_publish(self, credentials: Credentials, topic: str) -> bool:
        time.sleep(BLOCK)
        return True


class Late:
    """A timer that blocks the event loop."""

    slot = NO_SLOT

    def due(self) -> None:
        time.sleep(BLOCK)


async def in_a_turn(server: Server, port: int, trust: ssl.SSLContext) -> None:
    server.broker.turns.soon(lambda: time.sleep(BLOCK))


async def in_a_timer(server: Server, port: int, trust: ssl.SSLContext) -> None:
    server.broker.timers.set(Late(), server.broker.now)


async def by_a_client_over_tls(server: Server, port: int, trust: ssl.SSLContext) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
    writer.write(connect_packet("") + publish_packet(b"t", b""))
    await reader.read(1)
    writer.close()


@pytest.mark.parametrize("block", [in_a_turn, in_a_timer, by_a_client_over_tls])
def test_the_longest_block_counts_work(
    block: Callable[[Server, int, ssl.SSLContext], Awaitable[None]], certificates: Certificates
) -> None:
    async def longest() -> float:
        tls = Tls(certificate=str(certificates.server))
        config = Config(listen=["mqtts://127.0.0.1:0"], ephemeral=True, tls=tls)
        server = Server(config)
        server.broker.access = Slow()
        (listener,) = await server.start()
        server.broker.figures.longest_block = 0.0
        trust = ssl.create_default_context(cafile=str(certificates.authority))
        trust.check_hostname = False
        try:
            await block(server, listener.port, trust)
            await until(lambda: server.broker.figures.longest_block >= BLOCK)
        finally:
            await server.stop()
        return server.broker.figures.longest_block

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(longest()) >= BLOCK
