"""A broker on a disk that can lose power or fail, and clients that remember what real ones do.

machine = Machine(folder)
alice = Device(machine, "alice")
alice.connect()
alice.publish(("a/b", b"hello", 1))
machine.crash()
alice.connect()                            # what was not acknowledged is sent again
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
    """Return how many examples to try: PYRITE_EXAMPLES=20 has the tests try 20 times as many."""
    return max(1, int(number * float(os.environ.get("PYRITE_EXAMPLES", "1"))))


@contextmanager
def quick_folder() -> Iterator[Path]:
    """Give a folder in memory, if there is one: hundreds of commits are not to wait for a real disk."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="pyrite-", dir=memory if memory.is_dir() else None))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class PowerLoss(BaseException):
    """The power has gone. Nothing catches it but the test."""


class Deferred(Worker):
    """Keeps jobs until it is told to do them, as a thread does that is not scheduled yet."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any], object]]] = deque()

    def run(
        self,
        job: Callable[[], Result],
        then: Callable[[Result], object],
        failed: Callable[[Exception], Result] = raised,
        asker: Asker = NO_ONE,
    ) -> None:
        """Keep a job."""
        self._jobs.append((lambda: attempt(job, failed), then))

    @property
    def waiting(self) -> int:
        """How many jobs there are to do."""
        return len(self._jobs)

    def step(self) -> bool:
        """Do the first job, and tell the result; False if there is none."""
        if not self._jobs:
            return False
        job, then = self._jobs.popleft()
        then(job())
        return True

    def work_only(self) -> None:
        """Do the first job, if there is one; no one is told."""
        if self._jobs:
            self._jobs.popleft()[0]()

    def stop(self) -> None:
        """Do everything."""
        while self.step():
            pass


class OpenFiles(Files):
    """The real disk, with a list of what is open."""

    def __init__(self) -> None:
        self.open_files: set[int] = set()

    def open(self, path: Path) -> int:
        """Open a file, and note it."""
        descriptor = super().open(path)
        self.open_files.add(descriptor)
        return descriptor

    def close(self, descriptor: int) -> None:
        """Close a file that is open."""
        self.open_files.remove(descriptor)
        super().close(descriptor)

    def sync(self, descriptor: int) -> None:
        """Wait for nothing: what lies in memory will not be safer."""

    def sync_folder(self, path: Path) -> None:
        """Wait for nothing."""

    def abandon(self) -> None:
        """Close everything, as the end of a process does."""
        for descriptor in self.open_files:
            os.close(descriptor)
        self.open_files.clear()


class FailingFiles(OpenFiles):
    """A disk whose operations fail when told to. A write that fails has written a part."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: dict[str, int] = {}
        """Operations that fail, and the number of the error."""
        self.only = ""
        """A part of the path of the files to which writing fails, if not to all."""

    def heal(self) -> None:
        """Have everything work again."""
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
    """One file: its bytes as they are, and as the disk has them."""

    def __init__(self, data: bytes = b"") -> None:
        self.now = bytearray(data)
        self.safe = data


class FragileFiles(OpenFiles):
    """A disk that forgets what was not synced when the power goes, which may be at the n-th operation.

    What lies outside of `root` is on another disk, which forgets nothing.
    """

    def __init__(self, root: Path, survives: int = ALWAYS) -> None:
        super().__init__()
        self.root = root
        self.left = survives
        self._by_descriptor: dict[int, _File] = {}
        self._names: dict[Path, _File] = {}
        self._safe_names: dict[Path, _File] = {}
        self._changes: list[tuple[Path, _File | None]] = []
        """Names that were given or taken since their folder was synced, in that order."""
        self._safe_folders: set[Path] = set()
        for path in root.rglob("*"):
            if path.is_dir():
                self._safe_folders.add(path)
            else:
                self._names[path] = self._safe_names[path] = _File(path.read_bytes())

    def count(self) -> None:
        """Count an operation; the power may go here."""
        if self.left <= 0:
            raise PowerLoss
        self.left -= 1

    def open(self, path: Path) -> int:
        """Open a file; if it is new, its name is not safe."""
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
        """Write what is not safe yet."""
        if descriptor not in self._by_descriptor:
            super().write(descriptor, pieces, at)
            return
        self.count()
        super().write(descriptor, pieces, at)
        now, data = self._by_descriptor[descriptor].now, b"".join(pieces)
        at = len(now) if at < 0 else at
        now[at : at + len(data)] = data

    def sync(self, descriptor: int) -> None:
        """Make a file's bytes safe. The power may go before or right after it."""
        if descriptor not in self._by_descriptor:
            return
        self.count()
        file = self._by_descriptor[descriptor]
        file.safe = bytes(file.now)
        self.count()

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut a file; the disk may have it longer until the next sync."""
        if descriptor not in self._by_descriptor:
            super().truncate(descriptor, size)
            return
        self.count()
        super().truncate(descriptor, size)
        del self._by_descriptor[descriptor].now[size:]

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder safe."""
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
        """Rename a file."""
        if not old.is_relative_to(self.root):
            super().rename(old, new)
            return
        self.count()
        super().rename(old, new)
        file = self._names.pop(old)
        self._names[new] = file
        self._changes += [(old, None), (new, file)]

    def remove(self, path: Path) -> None:
        """Remove a file."""
        if not path.is_relative_to(self.root):
            super().remove(path)
            return
        self.count()
        super().remove(path)
        if self._names.pop(path, None) is not None:
            self._changes.append((path, None))

    def close(self, descriptor: int) -> None:
        """Close a file; its number may be that of another soon."""
        self._by_descriptor.pop(descriptor, None)
        super().close(descriptor)

    def crash(self, target: Path, random: Random | None) -> None:
        """Make a folder as the disk has it: with what was synced alone; or, if random, with more of it."""
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
    """Return what a disk may have of a file that was not synced."""
    safe, now = file.safe, bytes(file.now)
    if len(now) < len(safe):
        return random.choice([safe, now])
    # Some sectors reached the disk; the others are as they were, or zeros.
    survived = bytearray(safe.ljust(len(now), b"\0"))
    likely = random.choice([0.0, 0.5, 1.0])
    for start in range(0, len(now), SECTOR):
        if random.random() < likely:
            survived[start : start + SECTOR] = now[start : start + SECTOR]
    return bytes(survived[: random.choice([len(safe), len(now), random.randint(len(safe), len(now))])])


def default_streams(**options: Any) -> list[StreamOptions]:
    """Return two streams: `a` captures a/#, the default one all else; segments are small."""
    settings: dict[str, Any] = {"segment_bytes": 6_000, "fsync_interval": 0.0} | options
    return [StreamOptions("a", ["a/#"], **settings), StreamOptions(**settings)]


class Machine:
    """One computer: its data, its clock, and the broker that runs on it now."""

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
        """Seconds by which the time of day is ahead of what it should be."""
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
        """The data folder; after a crash it is another, as the disk has it."""
        return self.root / f"data-{self._boots}"

    def wall(self) -> float:
        """Return the time of day."""
        return WALL + self.elapsed + self.wrong_by

    def start(self, survives: int = ALWAYS) -> None:
        """Start a broker on the data; the power may go after so many operations of the disk."""
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
        self.journal = open_journal(
            self.data,
            self.streams,
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
        # A clock that begins anew with each start, as the real one does.
        now = 1_000.0 * self._boots + 500.0
        self.core = Core(
            self.limits,
            self.access,
            clock=self._clock,
            journal=self.journal,
            now=now,
            quotas=self.quotas,
        )
        self.running = True

    def tick(self, seconds: float) -> None:
        """Let time pass; the broker notices every second for a while, then all at once."""
        for _ in range(min(3, int(seconds))):
            self.elapsed += 1
            seconds -= 1
            if self.running:
                self.core.tick(1)
        self.elapsed += seconds
        if self.running and seconds > 0:
            self.core.tick(seconds)

    def settle(self) -> None:
        """Do all that workers have to do."""
        while any(
            isinstance(one, Deferred) and one.step() for one in (self.writing, self.committing, self.reading)
        ):
            self.core.flush()

    def crash(self, random: Random | None = None, keep: bool = False) -> None:
        """Cut the power: what becomes of the disk is to be started again.

        With `keep`, it is the process alone that ends: all that was written is there.
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
        if (old / "staging").exists():  # what is there was safe before it had its name
            shutil.copytree(old / "staging", self.data / "staging")
        self._leave()
        shutil.rmtree(old)

    def _leave(self) -> None:
        """Let go of what the process had, without a last word."""
        if self.running:
            self.running = False
            self.journal._state.close()
            self.journal.folder.close()
        self.files.abandon()

    def stop(self) -> None:
        """Stop the broker as one should."""
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
        """Return all messages of a stream, as a reader of the folder sees them; some may be `damaged`."""
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
    """Have the power go before or after a commit of the state, too."""
    commit = journal._state.commit

    def counted(changes: Sequence[Any]) -> None:
        files.count()
        commit(changes)
        files.count()

    setattr(journal._state, "commit", counted)  # noqa: B010


class Sent:
    """A message that a device published and that is not acknowledged to the end."""

    def __init__(self, packet: Publish) -> None:
        self.packet = packet
        self.received = False
        """Whether PUBREC came."""
        self.times = 1
        self.released = False
        """Whether PUBREL was sent on a connection before this one, so that the broker may be done with it."""


class Device:
    """A client that keeps its half of the session across connections, as the specification wants it.

    It uses the lowest packet id that is free, so that one which was not free would be noticed.
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
        """Whether a CONNACK has come on a connection that lives."""
        return self.client is not None and self.client.connack is not None

    # Coming and going

    def begin(self, clean: bool = False, **properties: Any) -> None:
        """Send CONNECT; the answer may take its time."""
        client = self.client = Client(self.machine.core, self.version)
        self.todo.clear()
        if self.version == V5:
            properties = {"session_expiry": self.expiry} | properties
            if self.window:
                properties.setdefault("receive_maximum", self.window)
        client.send(Connect(self.client_id, self.version, clean, properties=properties))
        self.receive()

    def connect(self, clean: bool = False, **properties: Any) -> None:
        """Connect, and send again what was not acknowledged, as far as the session is still there."""
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
        """Lose the connection, or end it."""
        if self.client is not None:
            if cleanly:
                self.client.send(Disconnect(0, {}))
            self.client.drop()
        self.cut_off()

    def cut_off(self) -> None:
        """Note that the other side is gone."""
        self.client = None
        self.todo.clear()

    # Sending

    def publish(self, *messages: tuple[str, bytes, int], flush: bool = True, **options: Any) -> list[Publish]:
        """Publish messages in one piece: topic, payload and quality of service of each."""
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
        """Return an id for a SUBSCRIBE or UNSUBSCRIBE."""
        self._next_request += 1
        return self._next_request

    def answer(self, most: int = ALWAYS, flush: bool = True) -> int:
        """Send acknowledgements that are owed, in their order; return how many."""
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
        """Take what has come."""
        client = self.client
        while client is not None and client.transport.written:
            for packet in client.received():
                self._take(packet)
        if client is not None and client.closed:
            self.cut_off()

    def last_words(self) -> None:
        """Take what came before the other side vanished; nothing can be said to it any more."""
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
        """Acknowledge everything until nothing more comes."""
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
        """Return the payloads of all messages that came."""
        return [packet.payload for packet in self.got]
