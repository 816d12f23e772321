"""Starts brokers by forking a process that has imported everything: ten times as fast as a new interpreter.

One such process serves all tests of a worker. It forks a child for each request, and reports the child's end.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

MAX_REQUEST = 1 << 20
START_TIMEOUT = 120.0
"""Seconds for the process to import everything and to fork."""
ENVIRONMENT = dict(os.environ)
"""Taken before any test changes it."""
OF_THE_INTERPRETER = ("PYTHON", "LD_", "MALLOC", "ARROW", "OPENBLAS")
"""Prefixes of environment variables that take effect only when an interpreter starts."""


# In the test


class ForkedProcess:
    """A forked `pyrite` command, with those members of subprocess.Popen that tests use."""

    def __init__(self, pid: int, status: int, stdout: IO[str], stderr: IO[str]) -> None:
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self.returncode: int | None = None
        self._status = open(status, closefd=True)  # noqa: SIM115
        """Ends with the exit code once the process has ended."""

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once the process has ended; raise TimeoutExpired if it runs longer."""
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._status, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired("pyrite", timeout or 0)
            with self._status:
                self.returncode = int(self._status.read())
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The process that forks, as seen by the test."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forking", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=ENVIRONMENT,
            )
        self._control = ours

    def can_start(self, environment: Mapping[str, str]) -> bool:
        """Return whether a forked process can have this environment."""
        names = {
            name
            for name in environment.keys() | ENVIRONMENT.keys()
            if name.startswith(OF_THE_INTERPRETER) and name != "PYTHONPATH"
        }
        path, common = environment.get("PYTHONPATH", ""), ENVIRONMENT.get("PYTHONPATH", "")
        folders = path.removesuffix(common).split(os.pathsep)
        return (
            all(environment.get(name) == ENVIRONMENT.get(name) for name in names)
            and path.endswith(common)
            and not any(Path(folder, "sitecustomize.py").exists() for folder in folders if folder)
        )

    def start(
        self, arguments: Sequence[str], cwd: Path | None, environment: Mapping[str, str]
    ) -> ForkedProcess:
        """Start `pyrite` with these arguments."""
        output, stdout = os.pipe()
        errors, stderr = os.pipe()
        status, done = os.pipe()
        request = {"arguments": arguments, "cwd": str(cwd or Path.cwd()), "environment": dict(environment)}
        self._control.settimeout(START_TIMEOUT)
        try:
            socket.send_fds(self._control, [json.dumps(request).encode()], [stdout, stderr, done])
        finally:
            for descriptor in (stdout, stderr, done):
                os.close(descriptor)
        pid = int(self._control.recv(64))
        return ForkedProcess(pid, status, open(output), open(errors))

    def close(self) -> None:
        """End the process; brokers that it has started go on."""
        self._control.close()
        self._process.wait(START_TIMEOUT)


_server: ForkServer | None = None


def fork_server() -> ForkServer:
    """Return the one that this test worker uses."""
    global _server
    if _server is None:
        _server = ForkServer()
        atexit.register(_server.close)
    return _server


# In the process that forks


def serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork a child for each request; return None at the end, and in each child its request."""
    running: dict[int, tuple[int, int]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd != control.fileno():
                    selector.unregister(key.fd)
                    _report(key.fd, *running.pop(key.fd))
                    continue
                data, descriptors, _, _ = socket.recv_fds(control, MAX_REQUEST, 3)
                if not data:
                    return None
                stdout, stderr, done = descriptors
                pid = os.fork()
                if pid == 0:
                    os.dup2(stdout, 1)
                    os.dup2(stderr, 2)
                    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
                    request: dict[str, Any] = json.loads(data)
                    return request
                os.close(stdout)
                os.close(stderr)
                control.send(b"%d" % pid)
                descriptor = os.pidfd_open(pid)
                running[descriptor] = pid, done
                selector.register(descriptor, selectors.EVENT_READ)


def _report(descriptor: int, pid: int, done: int) -> None:
    os.close(descriptor)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        os.write(done, b"%d" % code)
    except BrokenPipeError:
        pass  # the test does not ask any more
    os.close(done)


def run(request: dict[str, Any]) -> int:
    """Do in a forked child what `python -m pyrite` would do."""
    from pyrite.cli.main import main

    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["cwd"])
    sys.path[0] = request["cwd"]
    sys.path[1:1] = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.argv = ["pyrite", *request["arguments"]]
    return main()


if __name__ == "__main__":
    from pyrite.process.plain_arrow import keep_pandas_out

    keep_pandas_out()
    import pyrite.cli.serve
    import pyrite.server.run  # noqa: F401

    found = serve(socket.socket(fileno=int(sys.argv[1])))
    if found is not None:
        sys.exit(run(found))
