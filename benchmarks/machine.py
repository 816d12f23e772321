"""What the measurements were made on."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def describe() -> dict[str, str]:
    """Return the machine's cores, processor, memory, kernel, Python and present load."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cores": str(os.cpu_count()),
        "processor": _processor(),
        "memory": f"{memory:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "load average at the start": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }
