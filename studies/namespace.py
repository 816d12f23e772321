"""Network namespaces: networks of their own, so that a study changes nothing on the machine."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from studies.machine import StudyError

_CLONE_NEWNET = 0x4000_0000
_COMMAND_TIME = 20.0


def run(*words: str) -> str:
    """Run a program to its end, and return what it printed; raise StudyError if it failed."""
    done = subprocess.run(  # noqa: S603
        words, capture_output=True, text=True, timeout=_COMMAND_TIME, start_new_session=True
    )
    if done.returncode:
        raise StudyError(f"`{' '.join(words)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Have Ctrl-C wait until something is done as a whole."""
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


class Namespace:
    """A network namespace with its loopback up, removed at the end of a `with` block."""

    def __init__(self, name: str) -> None:
        self.name = f"pyrite-{os.getpid()}-{name}"
        self._path = Path("/run/netns", self.name)

    def __enter__(self) -> Self:
        try:
            with _uninterrupted():
                run("ip", "netns", "add", self.name)
            with self.entered():
                run("ip", "link", "set", "lo", "up")
        except BaseException:
            if self._path.exists():
                self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _remove(self) -> None:
        with _uninterrupted():
            run("ip", "netns", "delete", self.name)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Have this thread be inside: the sockets and processes that it makes stay there."""
        with (
            Path("/proc/thread-self/ns/net").open("rb") as outside,
            self._path.open("rb") as inside,
        ):
            _set(inside.fileno())
            try:
                yield
            finally:
                _set(outside.fileno())


def _set(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET):
        raise StudyError(f"cannot enter a network namespace: {os.strerror(ctypes.get_errno())}")


def set_here(name: str, value: str) -> None:
    """Change a kernel setting of the namespace that this thread is in."""
    (Path("/proc/sys") / name.replace(".", "/")).write_text(value)


@contextmanager
def slow_link(rate: int, burst: int, queue: int) -> Iterator[tuple[Namespace, Namespace]]:
    """Make two namespaces, 10.73.0.1 and 10.73.0.2, with a link that takes `rate` bytes/s from the first."""
    with Namespace("near") as near, Namespace("far") as far:
        run("ip", "-n", near.name, "link", "add", "near0", "type", "veth",
            "peer", "name", "far0", "netns", far.name)  # fmt: skip
        for namespace, device, address in ((near, "near0", "10.73.0.1"), (far, "far0", "10.73.0.2")):
            run("ip", "-n", namespace.name, "address", "add", f"{address}/24", "dev", device)
            run("ip", "-n", namespace.name, "link", "set", device, "up")
        run("tc", "-n", near.name, "qdisc", "add", "dev", "near0", "root", "tbf",
            "rate", f"{rate * 8}bit", "burst", str(burst), "limit", str(queue))  # fmt: skip
        yield near, far
