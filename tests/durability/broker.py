"""A broker with a data folder, that a test starts, stops, kills and starts again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from pyrite.storage.segment import Damage
from pyrite.storage.stream import StreamReader
from tests.conformance.client import Client, Tcp
from tests.conformance.reader import Packet
from tests.support.process import STOP_TIME, BrokerProcess

LONG = 86_400
"""The expiry interval of a session that outlives the test."""
ONE_SEGMENT = """
[[stream]]
name = "default"
segment_bytes = 1000000000000
"""
"""No segment becomes Parquet meanwhile, which would take memory."""
THREE_STREAMS = """
[[stream]]
name = "first"
topics = ["flow/1"]

[[stream]]
name = "second"
topics = ["flow/2"]
"""
"""Messages on flow/# are spread over three streams."""


class Broker:
    """`pyrite serve --data FOLDER` that can be restarted; its clients are closed whenever it ends."""

    def __init__(
        self,
        folder: Path,
        config: str = "",
        before: tuple[str, ...] = (),
        data: Path | None = None,
        data_seen_from_here: Path | None = None,
    ) -> None:
        self._data = data or folder / "data"
        self.data = data_seen_from_here or self._data
        """The data folder; the broker may see it under another path."""
        self.log: list[str] = []
        """What all processes so far wrote to standard error."""
        self.found: list[str] = []
        """What the running process found in the folder."""
        self._config = folder / "pyrite.toml"
        self._config.write_text(config)
        self._before = before
        self._process: BrokerProcess | None = None
        self._clients: list[Client] = []

    def configure(self, config: str) -> None:
        """Write pyrite.toml for the next start."""
        self._config.write_text(config)

    @property
    def process(self) -> BrokerProcess:
        """The running process."""
        assert self._process is not None, "the broker is down"
        return self._process

    @property
    def running(self) -> bool:
        """Whether the test has started a process and not ended it."""
        return self._process is not None

    @property
    def port(self) -> int:
        """The port, which is another one after each start."""
        return self.process.port()

    def start(self, wait: bool = True) -> None:
        """Start the broker, and return when it is ready or, without `wait`, at once."""
        assert self._process is None
        arguments = ("--data", str(self._data), "--config", str(self._config))
        self._process = BrokerProcess(
            *arguments, "--listen", "mqtt://127.0.0.1:0", before=self._before, wait=wait
        )
        self.found = self._process.found

    def stop(self) -> None:
        """Shut the broker down cleanly."""
        assert self._end(signal.SIGTERM) == 0, self.log

    def kill(self) -> None:
        """Kill the broker with SIGKILL."""
        assert self._end(signal.SIGKILL) == -signal.SIGKILL, self.log

    def wait_for_the_end(self) -> int:
        """Wait for a process that ends by itself, and return its exit code."""
        self.process.process.wait(STOP_TIME)
        return self._end(signal.SIGKILL)

    def end(self, how: str) -> None:
        """Let it `stop`, or `kill` it."""
        {"stop": self.stop, "kill": self.kill}[how]()

    def restart(self, how: str) -> None:
        """End it and start it again."""
        self.end(how)
        self.start()

    def _end(self, number: int) -> int:
        process, self._process = self.process, None
        if number == signal.SIGTERM:
            process.process.send_signal(number)
            self._see_the_end()
        code = process.stop(number)
        self.log += process.log
        self.close_clients()
        return code

    def _see_the_end(self) -> None:
        """Have every client read to the end of its connection: the broker waits for that, for a second."""
        for client in self._clients:
            while True:
                try:
                    if not client.transport.receive(STOP_TIME):
                        break
                except OSError:  # closed before, or too late
                    break
            client.close()

    def close_clients(self) -> None:
        """Drop all connections."""
        for client in self._clients:
            client.close()
        self._clients.clear()

    def close(self) -> None:
        """Leave nothing behind, whatever the test did."""
        self.close_clients()
        if self._process is not None:
            self._process.process.kill()
            self._end(signal.SIGKILL)

    @property
    def complaints(self) -> list[str]:
        """What it logged that is worse than a warning."""
        lines = self.log + (self.process.log if self._process is not None else [])
        return [line for line in lines if " ERROR " in line or line.startswith("Traceback")]

    # Clients

    def wire(self, version: int = 5) -> Client:
        """Return a client that has not sent its CONNECT."""
        client = Client(Tcp("127.0.0.1", self.port), version)
        self._clients.append(client)
        return client

    def client(self, client_id: str = "", version: int = 5, **wishes: Any) -> Client:
        """Return a client that is connected; without further wishes its session ends with it."""
        client = self.wire(version)
        connack = client.connect(client_id, **wishes)
        assert connack.reason == 0, connack
        return client

    def lasting(self, client_id: str, version: int = 5, **wishes: Any) -> Client:
        """Return a client that is connected to a session that lasts, an old or a new one."""
        if version == 5:
            wishes.setdefault("session_expiry_interval", LONG)
        return self.client(client_id, version, clean=False, **wishes)

    def returning(self, client_id: str, version: int = 5, **wishes: Any) -> Client:
        """Return a client that is connected to the session it had before."""
        client = self.lasting(client_id, version, **wishes)
        assert client.connack is not None
        assert client.connack.session_present, f"the session of {client_id!r} is gone"
        return client

    def settle(self) -> None:
        """Wait until the state so far is on disk: the CONNACK of a new persistent session waits for it."""
        client = self.client("settle", session_expiry_interval=LONG)
        client.disconnect(0, session_expiry_interval=0)

    # The log and the process, seen from outside

    def rows(self, first: int = 0, stream: str = "default") -> Iterator[pa.RecordBatch]:
        """Read the log from an offset as another process would; damage fails the test."""
        for piece in StreamReader(self.data / "streams" / stream).read(first):
            assert not isinstance(piece, Damage), piece
            yield piece

    def logged(self, topic: str, stream: str = "default") -> list[bytes]:
        """Return the payloads of a topic in log order."""
        return [
            payload
            for rows in self.rows(0, stream)
            for payload, name in zip(rows.column("payload"), rows.column("topic"), strict=True)
            if name.as_py() == topic
            for payload in [payload.as_py()]
        ]

    def memory(self) -> int:
        """Return the private memory of the process in bytes, without mapped files."""
        for line in Path(f"/proc/{self.process.process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the system does not tell")

    def open_files(self) -> int:
        """Return the number of open files and sockets of the process."""
        return len(list(Path(f"/proc/{self.process.process.pid}/fd").iterdir()))


def receive_until(client: Client, last: bytes, timeout: float = 10.0, most: int = 1_000_000) -> list[Packet]:
    """Acknowledge messages up to the one with this payload, and return them."""
    messages: list[Packet] = []
    for _ in range(most):
        messages.append(client.receive(timeout))
        if messages[-1].payload == last:
            return messages
    raise AssertionError(f"{last!r} did not come among {most} messages")
