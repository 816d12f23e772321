"""Reading a whole log into Arrow on one core: `python -m benchmarks.scan DATA`.

In a process of its own, because only so can it be kept to one core with all threads that Arrow starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from .generator import TIME_LIMIT, Figures, MeasurementError


def scan(data: Path) -> int:
    """Read every message in this data folder into Arrow record batches; return how many there were."""
    from pyrite.storage.segment import Damage
    from pyrite.storage.stream import StreamReader

    count = 0
    for folder in (data / "streams").iterdir():
        for piece in StreamReader(folder).read(0):
            if isinstance(piece, Damage):
                raise MeasurementError(str(piece))
            count += piece.num_rows
    return count


def measure(data: Path) -> Figures:
    """Scan this data folder in a process bound to one core; return its figures."""
    command = [sys.executable, "-m", "benchmarks.scan", str(data)]
    root = Path(__file__).parent.parent
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        raise MeasurementError(f"the scan did not end within {TIME_LIMIT:.0f} s") from None
    if done.returncode:
        raise MeasurementError((done.stderr.strip() or "the scan failed").splitlines()[-1])
    return {name: float(value) for name, value in json.loads(done.stdout).items()}


def main() -> None:
    """Scan twice, and print the second as a line of JSON: imports and page cache are then warm."""
    data = Path(sys.argv[1])
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    scan(data)
    start = time.perf_counter()
    count = scan(data)
    seconds = time.perf_counter() - start
    print(json.dumps({"scanned": count, "scan_seconds": seconds, "scanned_per_second": count / seconds}))


if __name__ == "__main__":
    main()
