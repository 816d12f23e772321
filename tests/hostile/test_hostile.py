"""Under every attack, messages of regular clients arrive soon, and memory is freed afterwards.

The attacks and the two regular clients are separate processes, so the broker alone is measured. With
PYRITE_SOAK set to a number, each attack takes this many seconds (`make soak`). A table of the measurements is
printed at the end; `--write-figures` writes it to docs/security.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped]
import pytest
import trustme

from pyrite.access.users import User, write_users
from tests.hostile.attacks import ATTACKS
from tests.hostile.attacks_by_log import CONSUMERS, SESSIONS
from tests.hostile.catalogue import CATALOGUE, GUARDED_SCHEMES, SCHEMES
from tests.hostile.dialing import PASSWORD
from tests.hostile.figures import Figures, Row
from tests.support.passwords import quick_hash
from tests.support.process import BrokerProcess
from tests.support.waiting import wait_until

SECONDS = float(os.environ.get("PYRITE_SOAK", "1.5"))
ATTACK = SECONDS + (2 if "PYRITE_SOAK" in os.environ else 1.5)
"""Seconds that an attack lasts; the clients that behave take some to start."""
ROOT = Path(__file__).parents[2]
FLOOR = 0.003 if "PYRITE_SOAK" in os.environ else 0.1
"""Seconds that the slowest of 100 messages may take with nothing else to do; other tests run beside these."""
MIB = 1024 * 1024
GROWTH = 64 * MIB
"""Bytes that the broker may have more than before: what Python and the allocator keep for the next time."""
ALL_GROWTH = 128 * MIB
"""Bytes that it may have more at any time than before the first attack."""
BESIDE = 128 * MIB
"""The same for each process beside it: that of HTTP may hold 256 MiB of answers, and keeps some of it."""
SAMPLE = 0.1
"""Seconds between two looks at the memory."""
CONFIG = """
[limits]
connect_timeout = 2.0

[tls]
certificate = "server.pem"
"""
GUARDED = f"""
[limits]
connect_timeout = 2.0
max_sessions = {2 * SESSIONS}

[tls]
certificate = "server.pem"
client_ca = "ca.pem"

[access]
users = "users"

[[access.rule]]
users = ["well"]
publish = ["well/#"]
subscribe = ["well/#"]

[[access.rule]]
users = ["greedy"]
publish = ["mine/#"]
subscribe = ["mine/#", "answers"]
pull = ["mine/#"]

[[access.rule]]
users = ["other"]
subscribe = ["mine/#"]
pull = ["mine/#"]

[[access.rule]]
users = ["reader"]
subscribe = ["#", "answers"]

[quotas.user.greedy]
consumers = {CONSUMERS}
"""
USERS = ("well", "greedy", "other", "reader")

pytestmark = [pytest.mark.xdist_group("hostile"), pytest.mark.timeout(200 + 4 * SECONDS)]


def start(module: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", f"tests.hostile.{module}", *arguments]
    quiet = os.environ | {"GRPC_VERBOSITY": "NONE"}
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=quiet)


def result(process: subprocess.Popen[str], sample: Callable[[], object] = lambda: None) -> dict[str, float]:
    """Return what a process prints at its end; call `sample` until then."""
    until = time.monotonic() + 150 + 3 * SECONDS
    while True:
        sample()
        try:
            output, _ = process.communicate(timeout=SAMPLE)
            break
        except subprocess.TimeoutExpired:
            if time.monotonic() > until:
                process.kill()
    assert process.returncode == 0
    found: dict[str, float] = json.loads(output)
    return found


Memory = dict[int, int]


def greet(port: int, encrypted: bool) -> None:
    """Return when a process answers."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        if encrypted:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            with suppress(ssl.SSLError), context.wrap_socket(one):
                pass
        else:
            one.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            one.recv(1)  # HTTP/2 answers HTTP/1 with an error


class Target:
    """A broker under attack, with its measurements from before."""

    def __init__(self, broker: BrokerProcess, ports: dict[str, int | str], url: str) -> None:
        self.broker = broker
        self.ports = ports
        self.url = url
        """The URL of the regular clients."""
        children = {"http", "https", "flight", "flights"} & ports.keys()
        for scheme in children:  # processes start with the first connection
            greet(int(ports[scheme]), scheme in ("https", "flights"))
        wait_until(lambda: len(self.memory()) == 1 + len(children), "all processes are running")
        found = result(start("pair", url, "3"))
        assert found["received"] == found["sent"] > 0
        self.idle = found
        """What they measure while there is nothing else to do."""
        self.at_first = self.memory()
        """What each process has before the first attack."""

    def memory(self) -> Memory:
        """Return the memory of the broker and each of its children."""
        process = psutil.Process(self.broker.process.pid)
        return {one.pid: one.memory_info().rss for one in (process, *process.children())}

    def name_of(self, pid: int) -> str:
        """Return the name of a process: the broker, or one of its children."""
        module: str = psutil.Process(pid).cmdline()[2]
        return {"pyrite": "broker"}.get(module, module.removeprefix("pyrite."))


@pytest.fixture(scope="module")
def figures(request: pytest.FixtureRequest) -> Iterator[Figures]:
    figures = Figures(SECONDS)
    yield figures
    if figures.rows:
        print(f"\n\n{figures}")
    if request.config.getoption("--write-figures", default=False):
        figures.write()


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory, figures: Figures) -> Iterator[Callable[[bool], Target]]:
    """Start each broker when the first attack needs it, so that it is measured idle on an idle machine."""
    started: dict[bool, Target] = {}
    with ExitStack() as brokers:

        def target(guarded: bool) -> Target:
            if guarded not in started:
                folder = tmp_path_factory.mktemp("guarded" if guarded else "hostile")
                started[guarded] = begin(folder, guarded, brokers)
                figures.idle.append((started[guarded].idle["p50"], started[guarded].idle["p99"]))
            return started[guarded]

        yield target


def begin(folder: Path, guarded: bool, brokers: ExitStack) -> Target:
    """Start a broker with users and rules, or one for everyone."""
    (folder / "pyrite.toml").write_text(GUARDED if guarded else CONFIG)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    server, visitor = authority.issue_cert("127.0.0.1"), authority.issue_cert("visitor@example.org")
    server.private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    visitor.private_key_and_cert_chain_pem.write_to_path(str(folder / "visitor.pem"))
    write_users(folder / "users", [User(name, quick_hash(PASSWORD)) for name in USERS])
    schemes = GUARDED_SCHEMES if guarded else SCHEMES
    listen = [f"--listen={scheme}://127.0.0.1:0" for scheme in schemes if scheme != "unix"]
    if not guarded:
        listen.append(f"--listen=unix://{folder / 'socket'}")
    broker = brokers.enter_context(
        BrokerProcess("--config", "pyrite.toml", "--data", "data", *listen, cwd=folder)
    )
    urls = map(urlsplit, broker.urls)
    ports = {scheme: one.port or one.path for scheme, one in zip(schemes, urls, strict=True)}
    url = broker.urls[0]
    if guarded:
        ports["certificate"] = str(folder / "visitor.pem")
        url = url.replace("//", f"//well:{PASSWORD}@")
    return Target(broker, ports, url)


def grown(now: Memory, before: Memory, by: int) -> bool:
    """Whether a process has grown by more than this; the processes must be the same."""
    assert now.keys() == before.keys(), "a process beside the broker has ended"
    return any(now[pid] > before[pid] + by for pid in before)


def test_every_attack_is_in_the_catalogue() -> None:
    assert CATALOGUE.keys() == ATTACKS.keys()


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_does_not_delay_regular_clients(
    targets: Callable[[bool], Target], figures: Figures, attack: str
) -> None:
    about = CATALOGUE[attack]
    target = targets(about.guarded)
    broker, idle, at_first = target.broker, target.idle["p99"], target.at_first
    before = target.memory()
    most = before.copy()

    def sample() -> None:
        for pid, size in target.memory().items():
            most[pid] = max(most.get(pid, 0), size)

    attacking = start("attacks", attack, str(ATTACK), json.dumps(target.ports))
    assert attacking.stdout is not None
    try:
        assert attacking.stdout.readline() == "ready\n"
        found = result(start("pair", target.url, str(SECONDS)), sample)
        done = result(attacking, sample)
    finally:
        attacking.kill()
        attacking.wait()
        attacking.stdout.close()
    assert broker.process.poll() is None

    def has_shrunk() -> bool:
        now = target.memory()
        return now[broker.process.pid] <= before[broker.process.pid] + GROWTH and not grown(
            now, at_first, BESIDE
        )

    with contextlib.suppress(AssertionError):  # the assertions below say more
        wait_until(has_shrunk, "the memory is free again")
    now = target.memory()
    taken = f"p50 {found['p50'] * 1e3:5.1f} ms, p99 {found['p99'] * 1e3:5.1f} ms (idle: {idle * 1e3:.1f} ms)"
    sizes = ", ".join(
        f"{target.name_of(pid)} {size >> 20} -> {most[pid] >> 20} -> {now[pid] >> 20}"
        for pid, size in before.items()
    )
    print(f"\n{attack:28} {taken}, MiB: {sizes}")
    figures.rows[attack] = Row(
        found["p50"],
        found["p99"],
        {target.name_of(pid): size >> 20 for pid, size in most.items()},
        {what: int(done.get(what, 0)) for what in about.most if what.endswith(", ms")},
    )
    assert [name for name, least in about.least.items() if done.get(name, 0) < least] == [], done
    assert [name for name, limit in about.most.items() if done.get(name, 0) > limit] == [], done
    assert found["received"] == found["sent"] > 0
    assert found["repeated"] == 0
    assert found["in_order"]
    assert found["p99"] <= 10 * max(idle, FLOOR), f"{found['p99']:.3f} s; idle: {idle:.3f} s"
    assert now[broker.process.pid] <= before[broker.process.pid] + GROWTH, sizes
    assert now[broker.process.pid] <= at_first[broker.process.pid] + ALL_GROWTH, sizes
    assert not grown(now, at_first, BESIDE), sizes
    if about.growth is not None:
        assert not grown(most, before, about.growth * MIB), sizes
    assert [line for line in broker.log if "internal error" in line or "Traceback" in line] == []
