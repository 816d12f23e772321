"""Embedded and external nats-servers: started, restarted, ended, and refused if they do not sync."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from pyrite.cluster.engine import EngineFailed
from pyrite.cluster.engine.embedded import own_route
from pyrite.cluster.options import ClusterOptions

from .conftest import PATIENCE, free_ports, opened, until

SERVER = Path(sys.executable).with_name("nats-server")


@contextmanager
def external(folder: Path, jetstream: str, more: str = "") -> Iterator[tuple[int, str]]:
    """Run a nats-server that is not ours; yield its port and its monitoring URL."""
    port, monitor = free_ports(2)
    file = folder / "server.conf"
    file.write_text(
        f"listen: 127.0.0.1:{port}\nhttp: 127.0.0.1:{monitor}\nmax_payload: 1MB\n"
        f"jetstream {{ store_dir: '{folder}/js', max_file_store: 20G, {jetstream} }}\n{more}"
    )
    process = subprocess.Popen([SERVER, "-c", file], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "Server is ready" in line:
                break
        yield port, f"http://127.0.0.1:{monitor}"
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


async def test_an_external_engine_that_does_not_sync_every_write_is_refused(tmp_path: Path) -> None:
    with external(tmp_path, "sync_interval: 10s") as (port, monitor):
        options = ClusterOptions(name="x", node="a", engine=f"nats://127.0.0.1:{port}", monitor=[monitor])
        with pytest.raises(EngineFailed, match=r"does not sync every write.*sync_interval: always"):
            await opened(options, tmp_path)
        options.monitor = []
        with pytest.raises(EngineFailed, match="expected the monitoring URLs"):
            await opened(options, tmp_path)
        options.monitor = ["http://127.0.0.1:1"]
        with pytest.raises(EngineFailed, match="cannot ask the engine"):
            await opened(options, tmp_path)


async def test_an_external_engine_with_tls_and_a_password(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    more = (
        f"tls {{ cert_file: '{tmp_path}/server.pem', key_file: '{tmp_path}/server.pem' }}\n"
        "authorization { user: ann, password: secret }"
    )
    with external(tmp_path, "sync_interval: always", more) as (port, monitor):
        options = ClusterOptions(
            name="x",
            node="a",
            engine=f"tls://ann:secret@127.0.0.1:{port}",
            replicas=1,
            monitor=[monitor],
            ca=str(tmp_path / "ca.pem"),
        )
        node = await opened(options, tmp_path)
        try:
            assert (await node.append(b"x", "x")).sequence == 1
            await until(lambda: node.got, "the group")
            assert node.engine.max_size == 1024 * 1024 - 4096
        finally:
            await node.engine.close()
        options.engine = f"tls://ann:wrong@127.0.0.1:{port}"
        with pytest.raises(EngineFailed, match=r"cannot connect to the engine at 127\.0\.0\.1") as error:
            await opened(options, tmp_path)
        assert "wrong" not in str(error.value)


async def test_an_embedded_server_that_dies_is_restarted_and_keeps_its_groups(tmp_path: Path) -> None:
    node = await opened(ClusterOptions(name="x", node="a"), tmp_path)
    try:
        await node.append(b"before", "before")
        node.signal(signal.SIGKILL)
        assert (await node.append(b"after", "after")).sequence == 2
        await until(lambda: len(node.got) == 2, "both groups")
        assert node.got == [(1, b"before"), (2, b"after")]
    finally:
        await node.engine.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
async def test_an_embedded_server_ends_with_its_node_even_if_the_node_is_killed(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys; from pathlib import Path\n"
        "from pyrite.cluster.engine import open_engine; from pyrite.cluster.options import ClusterOptions\n"
        "async def main():\n"
        "    engine = await open_engine(ClusterOptions(name='x', node='a'), Path(sys.argv[1]), 0, print)\n"
        "    print(engine.server.pid, flush=True); await asyncio.sleep(600)\n"
        "asyncio.run(main())"
    )
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    server = int(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()

    def is_gone() -> bool:
        try:
            return Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    await until(is_gone, "the end of the server")


async def test_a_server_that_outlived_its_node_is_ended_by_the_next(tmp_path: Path) -> None:
    node = await opened(ClusterOptions(name="x", node="a"), tmp_path)
    assert node.engine.server is not None
    process = node.engine.server._process
    assert process is not None
    assert node.engine.server._task is not None
    node.engine.server._task.cancel()  # the node is gone without ending its server
    try:
        after = await opened(ClusterOptions(name="x", node="a"), tmp_path)
        async with asyncio.timeout(PATIENCE):
            assert await process.wait() == -signal.SIGKILL
        assert (await after.append(b"x", "x")).sequence == 1
        await after.engine.close()
    finally:
        await node.engine.close()


async def test_no_other_user_of_the_machine_can_write_to_an_embedded_engine(tmp_path: Path) -> None:
    node = await opened(ClusterOptions(name="x", node="a"), tmp_path)
    try:
        assert node.engine.server is not None
        url = "nats://" + node.engine.server.url.partition("@")[2]
        options = ClusterOptions(name="x", node="b", engine=url, engine_syncs=True)
        with pytest.raises(EngineFailed, match="cannot connect"):
            await opened(options, tmp_path / "b")
        assert os.stat(tmp_path / "engine" / "nats-server.conf").st_mode & 0o077 == 0
    finally:
        await node.engine.close()


def test_the_own_route_is_the_one_with_an_address_of_this_machine() -> None:
    assert own_route(["203.0.113.1:6222", "127.0.0.1:6222", "203.0.113.2:6222"]) == "127.0.0.1:6222"
    with pytest.raises(EngineFailed, match="found none"):
        own_route(["203.0.113.1:6222"])
    with pytest.raises(EngineFailed, match=r"found 127\.0\.0\.1:1, 127\.0\.0\.1:2"):
        own_route(["127.0.0.1:1", "127.0.0.1:2"])
