"""The machine that a study runs on: what it must have, what limits it sets, what the kernel counts."""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import shutil
from pathlib import Path

_SETTINGS = (
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_congestion_control",
    "net.core.rmem_default",
    "net.core.rmem_max",
    "net.core.wmem_default",
    "net.core.wmem_max",
    "net.core.somaxconn",
    "fs.file-max",
)
_PACKAGES = {"tshark": "tshark", "ss": "iproute2", "ip": "iproute2", "tc": "iproute2"}


class StudyError(Exception):
    """A study cannot be run, or failed; the message says what to do about it."""


def require(*tools: str) -> None:
    """Raise StudyError unless programs, and the library that draws, are there."""
    for tool in tools:
        if shutil.which(tool) is None:
            package = _PACKAGES[tool]
            raise StudyError(f"{tool} is not installed: install it, as with `apt install {package}`")
    if importlib.util.find_spec("matplotlib") is None:
        raise StudyError("matplotlib is not installed: run `make test` once, or `pip install matplotlib`")


def require_root(why: str) -> None:
    """Raise StudyError unless this is root."""
    if os.geteuid() != 0:
        raise StudyError(f"{why} takes root: run it as root, as with `sudo`")


def limits() -> dict[str, str]:
    """Return the machine's limits and settings, by name."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = {
        "kernel": f"{platform.system()} {platform.release()}",
        "processors": str(os.cpu_count()),
        "memory": f"{meminfo('MemTotal') // 2**20} MiB",
        "descriptors a process (soft, hard)": f"{soft}, {hard}",
    }
    for name in _SETTINGS:
        found[name] = setting(name)
    return found


def setting(name: str) -> str:
    """Return a kernel setting, as seen from this thread's network namespace."""
    try:
        text = (Path("/proc/sys") / name.replace(".", "/")).read_text()
    except OSError:
        return "not known"  # of the machine and not of a namespace
    return " ".join(text.split())


def meminfo(name: str) -> int:
    """Return a figure of /proc/meminfo in bytes."""
    for row in Path("/proc/meminfo").read_text().splitlines():
        key, _, value = row.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise KeyError(name)


def slabs() -> dict[str, int]:
    """Return the bytes of the kernel's objects, by kind, as far as it may be read."""
    found = {}
    try:
        rows = Path("/proc/slabinfo").read_text().splitlines()[2:]
    except OSError:
        return {}
    for row in rows:
        name, active, _, size = row.split()[:4]
        found[name] = int(active) * int(size)
    return found


def udp_errors() -> int:
    """Return how many datagrams the kernel threw away at all sockets, as their buffers were full."""
    rows = Path("/proc/thread-self/net/snmp").read_text().splitlines()
    names, values = (row.split() for row in rows if row.startswith("Udp:"))
    return int(values[names.index("RcvbufErrors")])


def udp_drops(port: int) -> int:
    """Return how many datagrams the kernel threw away at a UDP socket, as its buffer was full."""
    return _udp_row(port)[1]


def udp_waiting(port: int) -> int:
    """Return how many bytes of the kernel's memory wait at a UDP socket to be read."""
    return _udp_row(port)[0]


def _udp_row(port: int) -> tuple[int, int]:
    for row in Path("/proc/thread-self/net/udp").read_text().splitlines()[1:]:
        words = row.split()
        if int(words[1].rpartition(":")[2], 16) == port:
            return int(words[4].rpartition(":")[2], 16), int(words[-1])
    raise StudyError(f"there is no UDP socket at port {port}")
