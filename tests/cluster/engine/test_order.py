"""The order of groups: real nats-servers that are killed, paused and replaced."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import pytest

from pyrite.cluster.options import ClusterOptions

from .conftest import Node, opened, three_nodes, until

MIB = 1024 * 1024


async def test_a_single_node_that_grows_to_three_continues_its_order(tmp_path: Path) -> None:
    alone = await opened(ClusterOptions(name="x", node="a"), tmp_path / "a")
    assert [(await alone.append(b"%d" % number, f"{number}")).sequence for number in range(3)] == [1, 2, 3]
    await alone.engine.close()
    async with three_nodes(tmp_path, (3, 0, 0)) as (a, b, _):
        assert (await a.append(b"next", "next")).sequence == 4
        await until(lambda: a.got, "the group")
        assert a.got == [(4, b"next")]
        await until(lambda: b.lost, "the report that older groups must be copied")
        assert b.lost == [4]
        assert b.got == []
        b.follow(3)
        await until(lambda: b.got, "the group")
        assert b.got == a.got


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_killed_and_paused_servers_lose_nothing_and_leave_one_order(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as nodes:
        confirmed: dict[bytes, int] = {}
        running = True

        async def publish(node: Node, author: int) -> None:
            number = 0
            while running:
                number += 1
                data = b"%d %d" % (author, number) + bytes(author * 1000)
                outcome = await node.append(data, f"{author}-{number}")
                if outcome.sequence is not None:
                    confirmed[data] = outcome.sequence

        async def progress(groups: int) -> None:
            wanted = len(confirmed) + groups
            await until(lambda: len(confirmed) >= wanted, "progress")

        publishers = [asyncio.create_task(publish(node, author)) for author, node in enumerate(nodes)]
        choice = random.Random(7)
        for fault in ("kill", "pause", "kill"):
            victim = choice.choice(nodes)
            if fault == "kill":
                victim.signal(signal.SIGKILL)
            else:
                victim.signal(signal.SIGSTOP)
                await progress(30)
                victim.signal(signal.SIGCONT)
            await progress(100)
        running = False
        await asyncio.gather(*publishers)
        assert (await nodes[0].append(b"last", "last")).sequence is not None
        await until(lambda: all(node.got and node.got[-1][1] == b"last" for node in nodes), "the last group")
        assert nodes[0].sequences == [*range(1, len(nodes[0].got) + 1)]
        assert nodes[0].got == nodes[1].got == nodes[2].got
        places = {data: sequence for sequence, data in nodes[0].got}
        assert len(places) == len(nodes[0].got), "a repeated append has two places"
        assert confirmed.items() <= places.items()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_without_a_quorum_nothing_is_confirmed_until_it_returns(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as nodes:
        a, b, c = nodes
        for name, node in zip("abc", nodes, strict=True):
            node.engine.hold_lease(name, b"here")
        await until(lambda: all(set(node.engine.leases) == set("abc") for node in nodes), "all leases")
        b.signal(signal.SIGSTOP)
        c.signal(signal.SIGSTOP)
        await until(lambda: not a.engine.has_quorum, "the loss of the quorum")
        positions: list[object] = []
        a.engine.position(positions.append)
        outcome = await a.append(b"x", "x")
        assert outcome.sequence is None
        assert "did not confirm" in outcome.error
        assert positions == [None]
        assert set(a.engine.leases) == set("abc"), "a node that hears nobody must not declare the others dead"
        b.signal(signal.SIGCONT)
        c.signal(signal.SIGCONT)
        await until(lambda: all(node.engine.has_quorum for node in nodes), "the quorum")
        assert (await a.append(b"y", "y")).sequence is not None
        await until(lambda: all(node.got and node.got[-1][1] == b"y" for node in nodes), "the group")
        await c.engine.close()
        await until(lambda: set(a.engine.leases) == set("ab"), "the end of a lease")


async def test_a_paused_node_holds_a_bounded_part_of_the_order(tmp_path: Path) -> None:
    node = await opened(ClusterOptions(name="x", node="a"), tmp_path)
    try:
        node.engine.pause()  # nothing to pause yet
        await until(lambda: node.engine.has_quorum, "a quorum")
        await node.append(b"first", "first")
        await until(lambda: node.got, "the first group")
        node.engine.pause()
        outcomes = await asyncio.gather(*(node.append(bytes(4 * MIB), f"{number}") for number in range(20)))
        assert all(outcome.sequence for outcome in outcomes)
        follower = node.engine._follower
        assert follower is not None
        held = sum(len(data) for _, data in follower._received)
        assert held <= 34 * MIB
        assert len(node.got) == 1
        node.engine.resume()
        await until(lambda: len(node.got) == 21, "all groups")
        assert node.sequences == [*range(1, 22)]
    finally:
        await node.engine.close()


async def test_a_follower_learns_that_older_groups_are_gone(tmp_path: Path) -> None:
    options = ClusterOptions(name="x", node="a", keep_bytes=3 * MIB)
    node = await opened(options, tmp_path)
    try:
        for number in range(6):
            assert (await node.append(bytes(MIB), f"{number}")).sequence == number + 1
        node.got.clear()
        node.follow(0)
        await until(lambda: node.lost, "the report")
        assert node.lost[0] > 1
        assert node.got == []
        node.follow(node.lost[0] - 1)
        await until(lambda: node.got and node.got[-1][0] == 6, "the groups that are left")
        node.lost.clear()
        node.follow(100)  # the engine holds less than was applied
        await until(lambda: node.lost, "the report")
        assert node.lost[0] <= 100
    finally:
        await node.engine.close()


async def test_a_node_catches_up_with_many_groups_over_one_consumer(tmp_path: Path) -> None:
    node = await opened(ClusterOptions(name="x", node="a"), tmp_path)
    try:
        await asyncio.gather(*(node.append(bytes(100), f"{number}") for number in range(2_000)))
        node.got.clear()
        node.follow(0)
        await until(lambda: len(node.got) == 2_000, "all groups")
        assert node.sequences == [*range(1, 2_001)]
        assert node.engine._follower is not None
        assert node.engine._follower.consumers == 1
    finally:
        await node.engine.close()


async def test_a_group_beyond_the_engines_limit_is_refused(tmp_path: Path) -> None:
    node = await opened(ClusterOptions(name="x", node="a"), tmp_path)
    try:
        await until(lambda: node.engine.has_quorum, "a quorum")
        assert (await node.append(bytes(node.engine.max_size), "fits")).sequence == 1
        outcome = await node.append(bytes(node.engine.max_size + 4097), "too long")
        assert outcome.sequence is None
        assert "max_payload" in outcome.error
    finally:
        await node.engine.close()
