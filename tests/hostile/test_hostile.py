"""Whatever some clients do, the others' messages all arrive, soon, and memory is given back.

The attacks and the two clients that behave are processes of their own: what is seen is the broker. With
PYRITE_SOAK set to a number, each attack goes on for so many seconds (`make soak`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped]
import pytest
import trustme

from tests.hostile.attacks import ATTACKS, IDLE
from tests.support.process import BrokerProcess

SECONDS = float(os.environ.get("PYRITE_SOAK", "3"))
ROOT = Path(__file__).parents[2]
SCHEMES = ("mqtt", "ws", "line", "udp", "http", "flight", "mqtts", "wss", "https", "flights", "unix")
STREAMS = {scheme: 1 for scheme in SCHEMES if scheme != "udp"}
FLOOR = 0.003 if "PYRITE_SOAK" in os.environ else 0.1
"""Seconds that the slowest of 100 messages may take with nothing else to do; other tests run beside these."""
MIB = 1024 * 1024
GROWTH = 64 * MIB
"""Bytes that the broker may have more than before: what Python and the allocator keep for the next time."""
ALL_GROWTH = 128 * MIB
"""Bytes that it may have more at any time than before the first attack."""
BESIDE = 128 * MIB
"""The same for each process beside it: that of HTTP may hold 256 MiB of answers, and keeps some of it."""
CONFIG = """
[limits]
connect_timeout = 2.0

[tls]
certificate = "server.pem"
"""
LEAST = {
    "slow_loris": {"opened": 300, "bytes": 1_000, **(STREAMS | {"flight": 0})},
    "half_open": {"opened": 300, **STREAMS},
    "idle_with_churn": {"idle": IDLE, "churned": 50},
    "connection_flood": {**dict.fromkeys(SCHEMES, 10), "inside TLS": 10},
    "subscription_bomb": {"filters": 500, "filters on lines": 500, "left": 4},
    "retained_bomb": {"topics": 1_000, "taken back": 1_000},
    "huge_topics": {"topics": 20, "topics on lines": 20},
    "collisions": {"mqtt": 30, "line": 30, "unix": 30},
    "api_requests": {"answers": 8},
    "random_bytes": {**dict.fromkeys(SCHEMES, 10), "inside TLS": 10},
}
"""What an attack must have done at least to be one."""

pytestmark = [pytest.mark.xdist_group("hostile"), pytest.mark.timeout(200 + 4 * SECONDS)]


def start(module: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", f"tests.hostile.{module}", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str]) -> dict[str, float]:
    output, _ = process.communicate(timeout=150 + 3 * SECONDS)
    assert process.returncode == 0
    found: dict[str, float] = json.loads(output)
    return found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "pyrite.toml").write_text(CONFIG)
    certificate = trustme.CA().issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    listen = [f"--listen={scheme}://127.0.0.1:0" for scheme in SCHEMES if scheme != "unix"]
    listen.append(f"--listen=unix://{folder / 'socket'}")
    with BrokerProcess("--config", "pyrite.toml", "--data", "data", *listen, cwd=folder) as broker:
        yield broker


@pytest.fixture(scope="module")
def idle(broker: BrokerProcess) -> float:
    """Seconds that the slowest of 100 messages takes while there is nothing else to do."""
    found = result(start("pair", broker.urls[0], "3"))
    assert found["received"] == found["sent"] > 0
    return found["p99"]


Memory = dict[int, int]


def memory(broker: BrokerProcess) -> Memory:
    """Return what the broker and each process beside it have in memory."""
    process = psutil.Process(broker.process.pid)
    return {one.pid: one.memory_info().rss for one in (process, *process.children())}


def name_of(pid: int) -> str:
    """Return what a process is: the broker, or one beside it."""
    module: str = psutil.Process(pid).cmdline()[2]
    return {"pyrite": "broker"}.get(module, module.removeprefix("pyrite."))


@pytest.fixture(scope="module")
def at_first(broker: BrokerProcess, idle: float) -> Memory:
    """What each process has before the first attack."""
    return memory(broker)


def grown(now: Memory, before: Memory, by: int) -> bool:
    """Tell whether a process has more than before by so much; they must be the same ones."""
    assert now.keys() == before.keys(), "a process beside the broker has ended"
    return any(now[pid] > before[pid] + by for pid in before)


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_others_do_not_notice(broker: BrokerProcess, idle: float, at_first: Memory, attack: str) -> None:
    urls = map(urlsplit, broker.urls)
    ports = {scheme: one.port or one.path for scheme, one in zip(SCHEMES, urls, strict=True)}
    before = memory(broker)
    attacking = start("attacks", attack, str(SECONDS + 2), json.dumps(ports))
    try:
        assert attacking.stdout is not None
        assert attacking.stdout.readline() == "ready\n"
        found = result(start("pair", broker.urls[0], str(SECONDS)))
        done = result(attacking)
    finally:
        attacking.kill()
        attacking.wait()
    assert broker.process.poll() is None
    assert [name for name, least in LEAST[attack].items() if done.get(name, 0) < least] == [], done
    assert found["received"] == found["sent"] > 0
    assert found["repeated"] == 0
    assert found["in_order"]
    assert found["p99"] <= 10 * max(idle, FLOOR), f"{found['p99']:.3f} s; idle: {idle:.3f} s"
    until = time.monotonic() + 30
    while time.monotonic() < until:
        now = memory(broker)
        if now[broker.process.pid] <= before[broker.process.pid] + GROWTH and not grown(
            now, at_first, BESIDE
        ):
            break
        time.sleep(0.2)
    taken = f"p50 {found['p50'] * 1e3:5.1f} ms, p99 {found['p99'] * 1e3:5.1f} ms (idle: {idle * 1e3:.1f} ms)"
    now = memory(broker)
    sizes = ", ".join(f"{name_of(pid)} {before[pid] >> 20} -> {now[pid] >> 20}" for pid in before)
    print(f"\n{attack:18} {taken}, MiB: {sizes}")
    assert now[broker.process.pid] <= before[broker.process.pid] + GROWTH, sizes
    assert now[broker.process.pid] <= at_first[broker.process.pid] + ALL_GROWTH, sizes
    assert not grown(now, at_first, BESIDE), sizes
    assert [line for line in broker.log if "internal error" in line or "Traceback" in line] == []
