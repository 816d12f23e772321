"""One Spark and one broker for all tests that want them: each takes seconds to start."""

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
from pyrite.spark.java import NoJava, find_java
from pyrite.spark.session import session
from tests.support.process import BrokerProcess

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # tests are too short for more
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


@pytest.fixture(scope="session")
def java() -> None:
    """Skip where there is no Java."""
    try:
        find_java()
    except NoJava as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def spark_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Spark writes to standard error."""
    return tmp_path_factory.mktemp("spark") / "log"


@pytest.fixture(scope="session")
def spark(java: None, spark_log: Path) -> Iterator[SparkSession]:
    """A Spark on two cores."""
    log = spark_log.open("wb")
    kept = os.dup(2)
    os.dup2(log.fileno(), 2)  # what Java, and the workers that it starts, have to say
    try:
        own = {
            "spark.sql.warehouse.dir": str(spark_log.parent / "warehouse"),
            "spark.connect.grpc.binding.port": str(free_port()),  # for who starts Spark Connect in it
        }
        spark = session("local[2]", "tests", SETTINGS | own)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        log.close()
    yield spark
    spark.stop()


class Broker:
    """A broker that can be killed and comes back on the same ports; and what to give `options`."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.mqtt, self.url = (f"{scheme}://127.0.0.1:{free_port()}" for scheme in ("mqtt", "flight"))
        self.process: BrokerProcess | None = None
        self.start()

    def start(self) -> None:
        self.process = BrokerProcess("--data", str(self.data), "--listen", self.mqtt, "--listen", self.url)

    def kill(self) -> None:
        assert self.process is not None
        self.process.stop(signal.SIGKILL)

    def stop(self) -> None:
        assert self.process is not None
        self.process.stop()

    def publish(self, topic: str, *payloads: str) -> None:
        """Publish messages; they are in the log when this returns."""
        with BlockingClient(self.mqtt) as client:
            for payload in payloads:
                client.publish(topic, payload.encode(), qos=1)

    def staged(self) -> list[str]:
        """Return what sinks have staged and not committed."""
        return [str(path) for path in self.data.glob("staging/**/*") if path.is_file()]


def free_port() -> int:
    """Return a port of 127.0.0.1 that no one listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that all tests share; each has topics of its own."""
    broker = Broker(tmp_path_factory.mktemp("broker"))
    yield broker
    broker.stop()


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"test/{uuid4()}"


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker that may be killed."""
    broker = Broker(tmp_path)
    yield broker
    broker.stop()


@pytest.fixture
def run_python(java: None, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Run a program in a process of its own, and a process group, all of which is gone at the end."""
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
    """Kill a process and all that it has started, at once."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
