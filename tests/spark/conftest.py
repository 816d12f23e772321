"""A Spark and a broker that tests share, as each takes seconds to start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from pyrite.client import BlockingClient
from pyrite.spark.java import JavaNotFound, find_java
from pyrite.spark.session import session
from tests.support.process import BrokerProcess

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # tests are too short to profit from more
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


@pytest.fixture(scope="session")
def java() -> None:
    """Skip tests without Java."""
    try:
        find_java()
    except JavaNotFound as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def spark_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Spark's standard error."""
    return tmp_path_factory.mktemp("spark") / "log"


@pytest.fixture(scope="session")
def spark(java: None, spark_log: Path) -> Iterator[SparkSession]:
    """A Spark with two cores."""
    log = spark_log.open("wb")
    kept = os.dup(2)
    os.dup2(log.fileno(), 2)  # output of Java and its workers
    try:
        own = {
            "spark.sql.warehouse.dir": str(spark_log.parent / "warehouse"),
            "spark.connect.grpc.binding.port": str(free_port()),  # for tests that start Spark Connect in it
        }
        spark = session("local[2]", "tests", SETTINGS | own)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        log.close()
    yield spark
    spark.stop()


class Broker:
    """A broker that can be killed and restarted on the same ports, and the options that lead to it."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.mqtt, self.url, self.http = (
            f"{scheme}://127.0.0.1:{free_port()}" for scheme in ("mqtt", "flight", "http")
        )
        self.process: BrokerProcess | None = None
        self.start()

    def start(self) -> None:
        listen = [f"--listen={url}" for url in (self.mqtt, self.url, self.http)]
        self.process = BrokerProcess("--data", str(self.data), *listen)

    def kill(self) -> None:
        assert self.process is not None
        self.process.stop(signal.SIGKILL)

    def stop(self) -> None:
        assert self.process is not None
        self.process.stop()

    def publish(self, topic: str, *payloads: str) -> None:
        """Publish messages; returns once they are in the log."""
        with BlockingClient(self.mqtt) as client:
            for payload in payloads:
                client.publish(topic, payload.encode(), qos=1)

    def staged(self) -> list[str]:
        """Return what sinks have staged and not committed."""
        return [str(path) for path in self.data.glob("staging/**/*") if path.is_file()]


def free_port() -> int:
    """Return a free port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A shared broker; each test uses topics of its own."""
    broker = Broker(tmp_path_factory.mktemp("broker"))
    yield broker
    broker.stop()


@pytest.fixture
def topic() -> str:
    """A topic used by one test only."""
    return f"test/{uuid4()}"


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker that the test may kill."""
    broker = Broker(tmp_path)
    yield broker
    broker.stop()


@pytest.fixture
def run_python(java: None, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Run a program in a process group, all of which is killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def run(program: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        path = tmp_path / f"program-{len(started)}.py"
        path.write_text(program)
        process = subprocess.Popen(
            [sys.executable, str(path), *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        kill_group(process)


def kill_group(process: subprocess.Popen[str]) -> None:
    """Kill a process and its children at once."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
