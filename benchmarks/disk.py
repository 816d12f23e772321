"""The disk under the brokers that keep messages: where it is, what it is, and what one bare write costs."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from .generator import BUILD, MeasurementError

BARE_WRITES = 200
BARE_WRITE_SIZE = 1024
IN_MEMORY = ("tmpfs", "ramfs")


def folder() -> Path:
    """Return where those brokers keep their data: in $TMPDIR if that is set, else in benchmarks/.build."""
    chosen = Path(os.environ.get("TMPDIR", BUILD)).resolve()
    kind = filesystem(chosen)
    if kind.partition(" ")[0] in IN_MEMORY:
        raise MeasurementError(f"{chosen} is on {kind}, where fsync does nothing; set TMPDIR to a real disk")
    return chosen


def filesystem(path: Path) -> str:
    """Return the kind of the file system that holds this path, and its device: `ext4 on /dev/vda`."""
    found, depth = "unknown", -1
    for line in Path("/proc/mounts").read_text().splitlines():
        device, mounted_at, kind = line.split()[:3]
        point = Path(mounted_at)
        if path.is_relative_to(point) and len(point.parts) >= depth:
            found, depth = f"{kind} on {device}", len(point.parts)
    return found


def used(path: Path) -> int:
    """Return the bytes on disk of all files in this folder, as `du` counts them."""
    return sum(512 * file.lstat().st_blocks for file in path.rglob("*") if file.is_file())


def bare_writes() -> list[float]:
    """Return the microseconds that each of 200 writes of 1 KiB takes, each with an fdatasync."""
    block, times = os.urandom(BARE_WRITE_SIZE), []
    with tempfile.TemporaryFile(dir=folder(), buffering=0) as file:
        for _ in range(BARE_WRITES):
            start = time.perf_counter_ns()
            file.write(block)
            os.fdatasync(file.fileno())
            times.append((time.perf_counter_ns() - start) / 1e3)
    return times
