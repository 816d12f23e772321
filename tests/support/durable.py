"""A broker on a disk that can lose power or fail, and clients with the state of real ones.

machine = Machine(folder)
alice = Device(machine, "alice")
alice.connect()
alice.publish(("a/b", b"hello", 1))
machine.crash()
alice.connect()                            # unacknowledged messages are sent again
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from pyrite.broker.access import Access
from pyrite.broker.limits import Limits
from pyrite.broker.quotas import QuotaOptions
from pyrite.journal.disk import DiskJournal, open_journal
from pyrite.journal.workers import Worker, attempt, raised
from pyrite.process.fair import NO_ONE, Asker
from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.packets import V5, Ack, Connack, Connect, Disconnect, Packet, Publish, Suback
from pyrite.storage.files import Files
from pyrite.storage.folder import FORMAT
from pyrite.storage.options import StreamOptions
from pyrite.storage.segment import Damage
from pyrite.storage.stream import StreamReader
from tests.support.core import Client, Core

Result = TypeVar("Result")

ALWAYS = 1 << 60
"""More operations than any test has."""
SECTOR = 512
"""Bytes that a disk writes whole or not at all."""
WALL = 2_000_000_000.0
"""The time of day at which every machine begins."""


def examples(number: int) -> int:
    """Return the number of examples to try; PYRITE_EXAMPLES=20 multiplies it by 20."""
    return max(1, int(number * float(os.environ.get("PYRITE_EXAMPLES", "1"))))


@contextmanager
def quick_folder() -> Iterator[Path]:
    """A folder in memory where possible, because hundreds of commits on a real disk are slow."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="pyrite-", dir=memory if memory.is_dir() else None))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class PowerLoss(BaseException):
    """Power loss. Only the test catches it."""


class Deferred(Worker):
    """A worker whose jobs run when the test says so, like a thread that is not scheduled yet."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any], object]]] = deque()

    def run(
        self,
        job: Callable[[], Result],
        then: Callable[[Result], object],
        failed: Callable[[Exception], Result] = raised,
        asker: Asker = NO_ONE,
    ) -> None:
        self._jobs.append((lambda: attempt(job, failed), then))

    @property
    def waiting(self) -> int:
        """The number of jobs that wait."""
        return len(self._jobs)

    def step(self) -> bool:
        """Run the first job and report its result; return False if there is none."""
        if not self._jobs:
            return False
        job, then = self._jobs.popleft()
        then(job())
        return True

    def work_only(self) -> None:
        """Run the first job, if there is one, without reporting its result."""
        if self._jobs:
            self._jobs.popleft()[0]()

    def stop(self) -> None:
        while self.step():
            pass


class OpenFiles(Files):
    """The real disk, with a record of open files."""

    def __init__(self) -> None:
        self.open_files: set[int] = set()

    def open(self, path: Path) -> int:
        descriptor = super().open(path)
        self.open_files.add(descriptor)
        return descriptor

    def close(self, descriptor: int) -> None:
        self.open_files.remove(descriptor)
        super().close(descriptor)

    def sync(self, descriptor: int) -> None:
        """Do nothing: the folder is in memory."""

    def sync_folder(self, path: Path) -> None:
        """Do nothing: the folder is in memory."""

    def abandon(self) -> None:
        """Close all files, as the end of a process does."""
        for descriptor in self.open_files:
            os.close(descriptor)
        self.open_files.clear()


class FailingFiles(OpenFiles):
    """A disk whose operations fail on request. A write that fails has written a part."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: dict[str, int] = {}
        """Operations that fail, with the error number."""
        self.only = ""
        """Writing fails for files with this in their path; for all files if empty."""

    def heal(self) -> None:
        self.failing.clear()

    def _check(self, operation: str) -> None:
        number = self.failing.get(operation)
        if number is not None:
            raise OSError(number, os.strerror(number))

    def open(self, path: Path) -> int:
        """Open a file, or fail."""
        self._check("open")
        return super().open(path)

    def write(self, descriptor: int, pieces: Sequence[bytes | memoryview], at: int = -1) -> None:
        """Write everything, or a part of it and fail."""
        if "write" in self.failing and self.only in os.readlink(f"/proc/self/fd/{descriptor}"):
            data = b"".join(pieces)
            super().write(descriptor, [data[: len(data) // 2]], at)
            self._check("write")
        super().write(descriptor, pieces, at)

    def sync(self, descriptor: int) -> None:
        """Sync, or fail."""
        self._check("sync")

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut a file, or fail."""
        self._check("truncate")
        super().truncate(descriptor, size)

    def sync_folder(self, path: Path) -> None:
        """Sync a folder, or fail."""
        self._check("sync_folder")


class _File:
    """One file: its current bytes, and its bytes on the disk."""

    def __init__(self, data: bytes = b"") -> None:
        self.now = bytearray(data)
        self.safe = data


class FragileFiles(OpenFiles):
    """A disk that loses unsynced data at a power loss, which may happen at the n-th operation.

    Files outside of `root` are on another disk, which loses nothing.
    """

    def __init__(self, root: Path, survives: int = ALWAYS) -> None:
        super().__init__()
        self.root = root
        self.left = survives
        self._by_descriptor: dict[int, _File] = {}
        self._names: dict[Path, _File] = {}
        self._safe_names: dict[Path, _File] = {}
        self._changes: list[tuple[Path, _File | None]] = []
        """Names added or removed since their folder was synced, in order."""
        self._safe_folders: set[Path] = set()
        for path in root.rglob("*"):
            if path.is_dir():
                self._safe_folders.add(path)
            else:
                self._names[path] = self._safe_names[path] = _File(path.read_bytes())

    def count(self) -> None:
        """Count an operation; the power may fail here."""
        if self.left <= 0:
            raise PowerLoss
        self.left -= 1

    def open(self, path: Path) -> int:
        """Open a file. The name of a new file is not durable yet."""
        if not path.is_relative_to(self.root):
            return super().open(path)
        self.count()
        descriptor = super().open(path)
        file = self._names.get(path)
        if file is None:
            file = self._names[path] = _File()
            self._changes.append((path, file))
        self._by_descriptor[descriptor] = file
        return descriptor

    def write(self, descriptor: int, pieces: Sequence[bytes | memoryview], at: int = -1) -> None:
        """Write bytes that are not durable yet."""
        if descriptor not in self._by_descriptor:
            super().write(descriptor, pieces, at)
            return
        self.count()
        super().write(descriptor, pieces, at)
        now, data = self._by_descriptor[descriptor].now, b"".join(pieces)
        at = len(now) if at < 0 else at
        now[at : at + len(data)] = data

    def sync(self, descriptor: int) -> None:
        """Make a file's bytes durable. The power may fail before or right after it."""
        if descriptor not in self._by_descriptor:
            return
        self.count()
        file = self._by_descriptor[descriptor]
        file.safe = bytes(file.now)
        self.count()

    def truncate(self, descriptor: int, size: int) -> None:
        """Truncate a file. It may keep its length on the disk until the next sync."""
        if descriptor not in self._by_descriptor:
            super().truncate(descriptor, size)
            return
        self.count()
        super().truncate(descriptor, size)
        del self._by_descriptor[descriptor].now[size:]

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable."""
        if not path.is_relative_to(self.root):
            return
        self.count()
        self._safe_folders.update(one for one in path.iterdir() if one.is_dir())
        kept = [change for change in self._changes if change[0].parent != path]
        for name, file in self._changes:
            if name.parent == path:
                _rename(self._safe_names, name, file)
        self._changes = kept
        self.count()

    def rename(self, old: Path, new: Path) -> None:
        if not old.is_relative_to(self.root):
            super().rename(old, new)
            return
        self.count()
        super().rename(old, new)
        file = self._names.pop(old)
        self._names[new] = file
        self._changes += [(old, None), (new, file)]

    def remove(self, path: Path) -> None:
        if not path.is_relative_to(self.root):
            super().remove(path)
            return
        self.count()
        super().remove(path)
        if self._names.pop(path, None) is not None:
            self._changes.append((path, None))

    def close(self, descriptor: int) -> None:
        """Close a file, whose descriptor may be reused."""
        self._by_descriptor.pop(descriptor, None)
        super().close(descriptor)

    def crash(self, target: Path, random: Random | None) -> None:
        """Write a folder as it is after the power loss: synced data, and at random parts of the rest."""
        self.left = 0
        names = dict(self._safe_names)
        folders = set(self._safe_folders)
        if random is not None:
            for name, file in self._changes[: random.randint(0, len(self._changes))]:
                _rename(names, name, file)
                folders.add(name.parent)
        for folder in sorted(folders):
            (target / folder.relative_to(self.root)).mkdir(parents=True, exist_ok=True)
        for name, file in names.items():
            if name.parent in folders:
                survived = file.safe if random is None else _torn(file, random)
                (target / name.relative_to(self.root)).write_bytes(survived)


def _rename(names: dict[Path, _File], name: Path, file: _File | None) -> None:
    if file is None:
        names.pop(name, None)
    else:
        names[name] = file


def _torn(file: _File, random: Random) -> bytes:
    """Return a possible state on the disk of a file that was not synced."""
    safe, now = file.safe, bytes(file.now)
    if len(now) < len(safe):
        return random.choice([safe, now])
    # Some sectors reached the disk; the others have their old bytes or zeros.
    survived = bytearray(safe.ljust(len(now), b"\0"))
    likely = random.choice([0.0, 0.5, 1.0])
    for start in range(0, len(now), SECTOR):
        if random.random() < likely:
            survived[start : start + SECTOR] = now[start : start + SECTOR]
    return bytes(survived[: random.choice([len(safe), len(now), random.randint(len(safe), len(now))])])


def default_streams(**options: Any) -> list[StreamOptions]:
    """Return two streams with small segments: `a` captures a/#, the default stream all else."""
    settings: dict[str, Any] = {"segment_bytes": 6_000, "fsync_interval": 0.0} | options
    return [StreamOptions("a", ["a/#"], **settings), StreamOptions(**settings)]


class Machine:
    """One computer: its data, its clock, and the broker that runs on it."""

    def __init__(
        self,
        root: Path,
        streams: Sequence[StreamOptions] | None = None,
        limits: Limits | None = None,
        files: Callable[[Path], OpenFiles] = FragileFiles,
        writing: Callable[[], Worker] = Worker,
        committing: Callable[[], Worker] | None = None,
        reading: Callable[[], Worker] = Worker,
        survives: int = ALWAYS,
        clock: Callable[[], float] | None = None,
        access: Access | None = None,
        quotas: QuotaOptions | None = None,
    ) -> None:
        self.root = root
        self.access = access
        self.quotas = quotas
        self.streams = list(streams) if streams is not None else default_streams()
        self.limits = limits
        self.elapsed = 0.0
        self.wrong_by = 0.0
        """Seconds by which the wall clock is ahead."""
        self.core: Core
        self.journal: DiskJournal
        self.files: OpenFiles
        self.writing: Worker
        self.committing: Worker
        self.reading: Worker
        self.running = False
        self._new_files = files
        self._new_writing = writing
        self._new_committing = committing
        self._new_reading = reading
        self._clock = clock
        self._boots = 0
        self.start(survives)

    @property
    def data(self) -> Path:
        """The data folder; every crash makes a new one."""
        return self.root / f"data-{self._boots}"

    def wall(self) -> float:
        """Return the time of day."""
        return WALL + self.elapsed + self.wrong_by

    def start(self, survives: int = ALWAYS) -> None:
        """Start a broker on the data; the power fails after this number of disk operations."""
        self.data.mkdir(0o700, parents=True, exist_ok=True)
        (self.data / "streams").mkdir(exist_ok=True)
        format_file = self.data / "format"
        if not format_file.exists():
            format_file.write_text(FORMAT)
        self.files = self._new_files(self.data / "streams")
        if isinstance(self.files, FragileFiles):
            self.files.left = survives
        self.writing, self.reading = self._new_writing(), self._new_reading()
        self.committing = self.writing if self._new_committing is None else self._new_committing()
        self.journal = self.open_journal(
            files=self.files,
            writing=self.writing,
            committing=self.committing,
            reading=self.reading,
            wall=self.wall,
            clock=lambda: 0.0,
            uptime=lambda: self.elapsed,
        )
        if isinstance(self.files, FragileFiles):
            _count_commits(self.journal, self.files)
        # The monotonic clock restarts with the machine.
        now = 1_000.0 * self._boots + 500.0
        self.core = self.new_core(
            self.limits,
            self.access,
            clock=self._clock,
            journal=self.journal,
            now=now,
            quotas=self.quotas,
        )
        self.running = True

    def open_journal(self, **parts: Any) -> DiskJournal:
        """Open the journal on the data."""
        return open_journal(self.data, self.streams, **parts)

    def new_core(self, *values: Any, **options: Any) -> Core:
        """Return the broker on the journal."""
        return Core(*values, **options)

    def tick(self, seconds: float) -> None:
        """Advance the clock: second by second for a while, then at once."""
        for _ in range(min(3, int(seconds))):
            self.elapsed += 1
            seconds -= 1
            if self.running:
                self.core.tick(1)
        self.elapsed += seconds
        if self.running and seconds > 0:
            self.core.tick(seconds)

    def settle(self) -> None:
        """Run all jobs of the workers."""
        while any(
            isinstance(one, Deferred) and one.step() for one in (self.writing, self.committing, self.reading)
        ):
            self.core.flush()

    def crash(self, random: Random | None = None, keep: bool = False) -> None:
        """Cut the power and keep what the disk has; start() runs a broker on it.

        With `keep`, the process alone ends: everything written is kept.
        """
        old = self.data
        self._boots += 1
        self.data.mkdir(0o700)
        for path in old.iterdir():
            if path.is_file() and path.name != "lock" and not path.name.endswith("-shm"):
                shutil.copyfile(path, self.data / path.name)
        if isinstance(self.files, FragileFiles) and not keep:
            self.files.crash(self.data / "streams", random)
            (self.data / "streams").mkdir(exist_ok=True)
        else:
            shutil.copytree(old / "streams", self.data / "streams")
        if (old / "staging").exists():  # staged files are durable before they get their name
            shutil.copytree(old / "staging", self.data / "staging")
        self._leave()
        shutil.rmtree(old)

    def _leave(self) -> None:
        """Close the files of the process without a clean shutdown."""
        if self.running:
            self.running = False
            self.journal.database.close()
            self.journal.folder.close()
        self.files.abandon()

    def stop(self) -> None:
        """Shut the broker down cleanly."""
        self.core.flush()
        self.running = False
        self.journal.close()
        assert not self.files.open_files, "files are left open"

    def restart(self) -> None:
        """Stop the broker and start another."""
        self.stop()
        self.start()

    def abandon(self) -> None:
        """End the test."""
        self._leave()

    def log(self, stream: str, damaged: bool = False) -> list[dict[str, Any]]:
        """Return all messages of a stream as a reader of the folder sees them; `damaged` allows damage."""
        rows: list[dict[str, Any]] = []
        for piece in StreamReader(self.data / "streams" / stream).read(0):
            if isinstance(piece, Damage):
                assert damaged, piece
            else:
                rows += piece.to_pylist()
        offsets = [row["offset"] for row in rows]
        assert offsets == sorted(set(offsets)), f"offsets of {stream}: {offsets}"
        return rows

    def whole_log(self, damaged: bool = False) -> list[dict[str, Any]]:
        """Return all messages of all streams."""
        return [row for one in self.streams for row in self.log(one.name, damaged)]


def _count_commits(journal: DiskJournal, files: FragileFiles) -> None:
    """Let the power fail before or after a commit of the state, too."""
    commit = journal.database.commit

    def counted(changes: Sequence[Any]) -> None:
        files.count()
        commit(changes)
        files.count()

    setattr(journal.database, "commit", counted)  # noqa: B010


class Sent:
    """A published message whose exchange is not complete."""

    def __init__(self, packet: Publish) -> None:
        self.packet = packet
        self.received = False
        """Whether PUBREC came."""
        self.times = 1
        self.released = False
        """Whether PUBREL was sent on a connection before this one, so that the broker may be done with it."""


class Device:
    """A client that keeps its half of the session across connections, as the specification requires.

    It uses the lowest free packet id, so the broker notices one that is not free.
    """

    def __init__(
        self, machine: Machine, client_id: str, expiry: int = 10_000, version: int = V5, window: int = 0
    ) -> None:
        self.machine = machine
        self.client_id = client_id
        self.expiry = expiry
        self.version = version
        self.window = window
        self.client: Client | None = None
        self.known = False
        """Whether it has been told of a session that should last."""
        self.present = False
        self.outgoing: dict[int, Sent] = {}
        self.half: set[int] = set()
        """Ids of QoS 2 messages that came and were not released."""
        self.todo: list[tuple[int, int]] = []
        """Acknowledgements that it owes: type and id."""
        self.got: list[Publish] = []
        """Messages that came, without those known by their id to be repeated."""
        self.accepted: list[Sent] = []
        """What the broker has taken."""
        self.refused: list[tuple[Sent, int]] = []
        self.others: list[Packet] = []
        self._next_request = 60_000

    @property
    def connected(self) -> bool:
        """Whether the connection is open and has its CONNACK."""
        return self.client is not None and self.client.connack is not None

    # Coming and going

    def begin(self, clean: bool = False, **properties: Any) -> None:
        """Send CONNECT without waiting for the answer."""
        client = self.client = Client(self.machine.core, self.version)
        self.todo.clear()
        if self.version == V5:
            properties = {"session_expiry": self.expiry} | properties
            if self.window:
                properties.setdefault("receive_maximum", self.window)
        client.send(Connect(self.client_id, self.version, clean, properties=properties))
        self.receive()

    def connect(self, clean: bool = False, **properties: Any) -> None:
        """Connect, and send unacknowledged messages again if the session is present."""
        self.begin(clean, **properties)
        assert self.connected, "no CONNACK"

    def _let_in(self, connack: Connack) -> None:
        assert self.client is not None
        assert connack.reason == 0, connack
        self.client.connack = connack
        self._is_known(connack)
        again: list[Packet] = []
        for packet_id, sent in self.outgoing.items():
            if sent.received:
                sent.released = True
                again.append(Ack(fields.PUBREL, packet_id))
            else:
                packet = sent.packet
                sent.times += 1
                again.append(
                    Publish(
                        packet.topic, packet.payload, packet.qos, packet.retain, True, packet_id,
                        packet.properties,
                    )
                )  # fmt: skip
        if again:
            self.client.send(*again)

    def _is_known(self, connack: Connack) -> None:
        self.present = connack.session_present
        self.known = self.expiry > 0
        if not self.present:
            self.half.clear()
            self.outgoing.clear()

    def drop(self, cleanly: bool = False) -> None:
        """Lose the connection, or disconnect."""
        if self.client is not None:
            if cleanly:
                self.client.send(Disconnect(0, {}))
            self.client.drop()
        self.cut_off()

    def cut_off(self) -> None:
        """Forget a connection whose broker is gone."""
        self.client = None
        self.todo.clear()

    # Sending

    def publish(self, *messages: tuple[str, bytes, int], flush: bool = True, **options: Any) -> list[Publish]:
        """Publish messages in one piece, each a topic, payload and QoS."""
        client = self.client
        assert client is not None
        packets = [self._packet(topic, payload, qos, **options) for topic, payload, qos in messages]
        client.feed(client.encoded(*packets))
        if flush:
            self.machine.core.flush()
        return packets

    def _packet(
        self, topic: str, payload: bytes, qos: int, retain: bool = False, **properties: Any
    ) -> Publish:
        packet_id = next(one for one in range(1, 65_536) if one not in self.outgoing) if qos else 0
        packet = Publish(topic.encode(), payload, qos, retain, False, packet_id, properties)
        if qos:
            self.outgoing[packet_id] = Sent(packet)
        return packet

    def request(self) -> int:
        """Return a packet id for SUBSCRIBE or UNSUBSCRIBE."""
        self._next_request += 1
        return self._next_request

    def answer(self, most: int = ALWAYS, flush: bool = True) -> int:
        """Send pending acknowledgements in order; return their number."""
        client = self.client
        if client is None or not self.todo:
            return 0
        now, self.todo = self.todo[:most], self.todo[most:]
        packets: list[Packet] = []
        for kind, packet_id in now:
            unknown = kind == fields.PUBCOMP and packet_id not in self.half and self.version == V5
            if kind == fields.PUBCOMP:
                self.half.discard(packet_id)
            packets.append(Ack(kind, packet_id, 0x92 if unknown else 0))
        client.feed(client.encoded(*packets))
        if flush:
            self.machine.core.flush()
        return len(packets)

    # Receiving

    def receive(self) -> None:
        """Handle the packets that came."""
        client = self.client
        while client is not None and client.transport.written:
            for packet in client.received():
                self._take(packet)
        if client is not None and client.closed:
            self.cut_off()

    def last_words(self) -> None:
        """Handle the packets that came before the broker was gone."""
        client = self.client
        for packet in client.received() if client is not None else ():
            if not isinstance(packet, Connack):
                self._take(packet)
            else:
                assert client is not None
                client.connack = packet
                self._is_known(packet)
        self.cut_off()

    def _take(self, packet: Packet) -> None:
        assert self.client is not None
        if isinstance(packet, Connack):
            self._let_in(packet)
            return
        assert self.client.connack is not None, f"{packet} came before CONNACK"
        if isinstance(packet, Publish):
            self._message(packet)
        elif isinstance(packet, Ack):
            self._acknowledgement(packet)
        elif isinstance(packet, Suback | Disconnect):
            self.others.append(packet)

    def _message(self, packet: Publish) -> None:
        if packet.qos == 2:
            self.todo.append((fields.PUBREC, packet.packet_id))
            if packet.packet_id in self.half:
                assert packet.dup, f"{self.client_id}: {packet} under an id that is in use"
                return
            self.half.add(packet.packet_id)
        elif packet.qos == 1:
            self.todo.append((fields.PUBACK, packet.packet_id))
        self.got.append(packet)

    def _acknowledgement(self, packet: Ack) -> None:
        packet_id = packet.packet_id
        if packet.type == fields.PUBREL:
            self.todo.append((fields.PUBCOMP, packet_id))
            return
        sent = self.outgoing.get(packet_id)
        assert sent is not None, f"{self.client_id}: {packet} for what was not sent"
        if packet.reason >= 0x80 and packet.reason != 0x92:
            self.refused.append((self.outgoing.pop(packet_id), packet.reason))
        elif packet.type == fields.PUBREC:
            assert sent.packet.qos == 2
            if not sent.received:
                self.accepted.append(sent)
            sent.received = True
            self.todo.append((fields.PUBREL, packet_id))
        elif packet.type == fields.PUBACK:
            assert sent.packet.qos == 1
            self.accepted.append(self.outgoing.pop(packet_id))
        else:
            assert packet.type == fields.PUBCOMP
            assert sent.received, f"{self.client_id}: PUBCOMP without PUBREC"
            assert packet.reason == 0 or sent.released, f"{self.client_id}: {packet_id} is not known"
            del self.outgoing[packet_id]

    def finish(self) -> None:
        """Acknowledge until nothing more comes."""
        self.machine.settle()
        self.receive()
        rounds = 0
        while self.todo:
            rounds += 1
            assert rounds < 10_000, "it never ends"
            self.answer()
            self.machine.settle()
            self.receive()

    def payloads(self) -> list[bytes]:
        """Return the payloads of all received messages."""
        return [packet.payload for packet in self.got]
