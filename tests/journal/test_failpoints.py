"""Every failpoint, alone and in pairs: readers get every acknowledged message, unchanged."""

from __future__ import annotations

import ast
import errno
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

import pyrite
from pyrite.journal import gathering
from pyrite.journal.verify import verify
from pyrite.protocols.mqtt.packets import Ack, Subscribe, Wish
from pyrite.sinks.staging import Staging
from pyrite.storage.bulk import LogFolder
from pyrite.storage.folder import FolderError
from pyrite.storage.options import StreamOptions
from pyrite.storage.query import Query, QueryError
from tests.broker.test_consumers import create, fetch, payloads
from tests.support.durable import Device, Machine, examples, quick_folder
from tests.support.failpoints import (
    FAILPOINTS,
    NAMES,
    Action,
    Fail,
    FailpointFiles,
    Failpoints,
    Stop,
    Stopped,
)

pytestmark = pytest.mark.slow

PAIRS = 60
SEED = 20_260
ROUNDS = 3
PADDING = bytes(700)
LARGE = bytes(gathering.MAX_ROW_BYTES)


class World:
    """A publisher, an offline session, a consumer, and the messages that were acknowledged.

    Every third message is too large for the tail: it is a record batch of its own.
    """

    def __init__(self, folder: Path) -> None:
        self.points = Failpoints()
        options = StreamOptions(segment_bytes=2_000, fsync_interval=0.0)
        self.machine = Machine(folder, [options], files=lambda _: FailpointFiles(self.points))
        self.reader = Device(self.machine, "away")
        self.reader.connect()
        assert self.reader.client is not None
        self.reader.client.subscribe("a", qos=1)
        self.reader.drop()
        create(self.machine)
        self.number = 0
        self.accepted: list[bytes] = []

    def live(self) -> None:
        """Publish, have segments sealed, converted and merged, stage something, end and start again."""
        for _ in range(ROUNDS):
            for _ in range(3):
                self.publish()
            self.machine.tick(3)
            self.stage()
        self.publish()
        self.machine.crash(keep=True)
        self.cut_index()
        self.machine.start()
        self.publish()
        self.machine.restart()
        self.publish()

    def publish(self) -> None:
        client = self.machine.core.connect("publisher")
        self.number += 1
        payload = b"%d" % self.number + (LARGE if self.number % 3 == 1 else PADDING)
        client.publish("a", payload, qos=1)
        for packet in client.received():
            if isinstance(packet, Ack) and packet.reason < 0x80:
                self.accepted.append(payload)
        client.drop()

    def stage(self) -> None:
        staging = Staging(self.machine.data, self.machine.files)
        rows = pa.RecordBatch.from_pydict({"topic": ["s"], "payload": [b"x"]})
        try:
            staging.write("sink", "part", rows.schema, [rows])
            staging.remove("sink", None)
        except (QueryError, OSError):
            pass  # the writer is told

    def cut_index(self) -> None:
        """Leave of the last index what a power failure may leave."""
        found = sorted((self.machine.data / "streams" / "default").glob("*.arrow.index"))
        if found and found[-1].stat().st_size > 64:
            with found[-1].open("r+b") as file:
                file.truncate(64)

    def recover(self) -> None:
        """Have everything work again, and start again if the process has ended."""
        self.points.heal()
        machine = self.machine
        if machine.running:
            machine.tick(3)
        else:
            machine.files.abandon()
            machine.start()
        machine.tick(3)
        assert machine.journal.fault is None
        self.publish()
        assert self.accepted[-1].startswith(b"%d\0" % self.number), "it works again"

    def check(self) -> None:
        """Require that every reader gets the acknowledged messages in order, unchanged and once."""
        machine, accepted = self.machine, self.accepted
        wanted = set(accepted)

        def same(reader: str, found: Sequence[bytes]) -> None:
            assert [one for one in found if one in wanted] == accepted, f"{reader}: {len(found)} messages"

        self.reader.connect()
        self.reader.finish()
        same("the session that was away", list(dict.fromkeys(self.reader.payloads())))
        same("the consumer", payloads(fetch(machine.core.broker.consumers["c"])))
        past = machine.core.connect("past")
        past.send(Subscribe(1, [Wish(b"a", 1)], {"user_property": [("pyrite-from", "earliest")]}))
        got = [one.payload for one in past.messages()]
        while more := past.finish():
            got += [one.payload for one in more]
        same("the replay", got)
        log = LogFolder(machine.data)
        columns = [
            rows.column("payload").to_pylist()
            for rows in log.read(Query("default", log.bounds("default").first))
        ]
        same("Flight", [one for column in columns for one in column])
        assert log.bounds("default").end >= len(accepted)
        lost = [damage for damage in verify(machine.data) if damage.first >= 0]
        assert lost == [], "verify"
        machine.stop()


def go_through(actions: dict[str, Action]) -> list[str]:
    """Live with some failpoints armed; return which were reached."""
    with quick_folder() as folder:
        world = World(folder)
        for name, action in actions.items():
            world.points.arm(name, action)
        try:
            world.live()
        except Stopped:
            world.points.heal()
            if world.machine.running:
                world.machine.crash(keep=True)
        except (OSError, FolderError):
            pass  # it did not start, or did not end in good order
        hit = list(world.points.hit)
        world.recover()
        world.check()
        return hit


ACTIONS: dict[str, Action] = {
    "full": Fail(errno.ENOSPC, short=True),
    "once": Fail(errno.EIO, times=1),
    "stop": Stop(short=True),
    "stop after": Stop(after=True),
}


def fresh(action: Action) -> Action:
    return type(action)(**vars(action))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_failure_loses_acknowledged_messages(name: str) -> None:
    for how, action in ACTIONS.items():
        assert name in REACHED_AFTER_A_FAULT or go_through({name: fresh(action)}), f"{how} was never reached"


REACHED_AFTER_A_FAULT = {
    *("index truncate", "segment truncate"),
    *(name for name in NAMES if name.startswith("probe")),
}
"""Failpoints that only a life with another fault comes by."""


def pairs() -> list[tuple[str, str, str, str]]:
    """Return pairs of failpoints, and what happens there: as many as there is time for, by a seed."""
    random = Random(SEED)
    every = [(one, other) for one, other in combinations(NAMES, 2)]
    chosen = random.sample(every, min(len(every), examples(PAIRS)))
    return [(*pair, random.choice([*ACTIONS]), random.choice([*ACTIONS])) for pair in chosen]


@pytest.mark.parametrize("part", range(6))
def test_no_pair_of_failures_loses_acknowledged_messages(part: int) -> None:
    for one, other, how, then in pairs()[part::6]:
        try:
            go_through({one: fresh(ACTIONS[how]), other: fresh(ACTIONS[then])})
        except BaseException as error:
            error.add_note(f"seed {SEED}: {one} ({how}) and {other} ({then})")
            raise


@pytest.mark.parametrize("other", sorted(REACHED_AFTER_A_FAULT))
def test_no_failure_after_a_failure_loses_acknowledged_messages(other: str) -> None:
    for how in ACTIONS:
        actions = {"segment sync": fresh(ACTIONS["full"]), other: fresh(ACTIONS[how])}
        assert other in go_through(actions), f"{how} was never reached"


WRITES_OF_OS = {
    *("write", "writev", "pwrite", "pwritev", "sendfile", "fsync", "fdatasync", "truncate", "ftruncate"),
    *("rename", "replace", "unlink", "remove", "rmdir", "mkdir", "makedirs", "link", "symlink", "open"),
}
WRITES_OF_PATHS = {
    *("write_bytes", "write_text", "unlink", "rmdir", "mkdir", "touch", "symlink_to", "hardlink_to", "chmod"),
}


def test_the_log_writes_only_through_files() -> None:
    """No call that changes the disk is made outside of files.py, which has a failpoint for each.

    snapshot.py is left out: it makes temporary files for readers, and nothing in them is promised.
    """
    found = []
    rooms = Path(pyrite.__file__).parent
    paths = (path for room in ("storage", "journal", "sinks") for path in (rooms / room).glob("*.py"))
    for path in paths:
        if path.name not in ("files.py", "snapshot.py"):
            calls = (one for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.Call))
            found += [f"{path.name}:{one.lineno}: {ast.unparse(one)}" for one in calls if _writes(path, one)]
    assert found == []


def _writes(path: Path, call: ast.Call) -> bool:
    """Tell whether a call changes the disk, as far as its name tells."""
    if not isinstance(call.func, ast.Attribute):
        return ast.unparse(call.func) == "open"
    owner, method = ast.unparse(call.func.value), call.func.attr
    if owner == "os":
        return method in WRITES_OF_OS
    if owner == "shutil" or method in WRITES_OF_PATHS:
        return True
    if method == "open" and owner not in ("files", "self._files"):
        return any(isinstance(one, ast.Constant) and one.value != "rb" for one in call.args)
    if method in ("replace", "rename") and len(call.args) == 1:  # those of texts have two
        return True
    return path.name == "state.py" and method == "execute" and "COMMIT" in ast.unparse(call)


def test_every_failpoint_is_an_operation_of_files() -> None:
    operations = {"open", "write", "sync", "truncate", "rename", "remove", "commit", "make"}
    assert {one for each in FAILPOINTS.values() for one in each} <= operations
