"""`pyrite cluster local`: several nodes with embedded engines on this machine."""

from __future__ import annotations

import argparse
import contextlib
import json
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pyrite.process.endpoints import free_port

SCHEMES = ("mqtt", "ws", "line", "flight", "http")
STOP_TIME = 20.0
"""Seconds for a node to end before it is killed."""


def run(args: argparse.Namespace) -> int:
    """Run nodes until Ctrl-C, or until one ends."""
    with _folder(args.data) as folder:
        nodes = [
            subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "pyrite", "serve", "--config", str(file)],
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C is for this process, which stops the nodes
            )
            for file in write_configurations(folder, args.nodes)
        ]
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        ready = threading.Event()
        for node in nodes:
            threading.Thread(target=_end_together, args=(node, nodes, ready), daemon=True).start()
        try:
            listening = [_listeners(node) for node in nodes]
            if all(listening):
                ready.set()
                _show(listening, folder)
                nodes[0].wait()
            print("pyrite cluster local: a node has ended", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 0
        finally:
            _stop(nodes)


def write_configurations(folder: Path, count: int) -> list[Path]:
    """Write the configuration of each node of a cluster on free ports; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"node-{number}.toml" for number in range(1, count + 1)]
    if all(file.is_file() for file in files):
        return files  # the same ports as last time
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    routes = [f"127.0.0.1:{port}" for port in ports]
    secret = secrets.token_hex(16)
    for file, route in zip(files, routes, strict=True):
        values = {
            "name": "local",
            "node": file.stem,
            "routes": routes if count > 1 else [],
            "listen": route if count > 1 else "",
            "secret": secret,
        }
        listen = [f"{scheme}://127.0.0.1:0{'/mqtt' if scheme == 'ws' else ''}" for scheme in SCHEMES]
        lines = [f"listen = {json.dumps(listen)}", f"data = {json.dumps(str(folder / file.stem))}", ""]
        lines += ["[cluster]", *(f"{key} = {json.dumps(value)}" for key, value in values.items()), ""]
        file.touch(mode=0o600)
        file.write_text("\n".join(lines), encoding="utf-8")
    return files


@contextlib.contextmanager
def _folder(data: Path | None) -> Iterator[Path]:
    if data is not None:
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="pyrite-cluster-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _end_together(
    node: subprocess.Popen[str], nodes: list[subprocess.Popen[str]], ready: threading.Event
) -> None:
    """Stop all nodes if one ends before all are ready: the others would wait for it for ever."""
    node.wait()
    if not ready.is_set():
        for other in nodes:
            other.terminate()


def _listeners(node: subprocess.Popen[str]) -> list[str]:
    """Return the listeners of a node once it is ready; nothing if it has ended."""
    found: list[str] = []
    assert node.stdout is not None
    for line in node.stdout:
        if line.startswith("listening on "):
            found.append(line.removeprefix("listening on ").strip())
        elif line.startswith("pyrite ready"):
            return found
    return []


def _show(listening: list[list[str]], folder: Path) -> None:
    table = Table(title=f"a cluster of {len(listening)} nodes in {folder}; Ctrl-C stops it", title_style="")
    table.add_column("node")
    for scheme in SCHEMES:
        table.add_column(scheme)
    for number, urls in enumerate(listening, 1):
        by_scheme = {url.partition("://")[0]: url for url in urls}
        table.add_row(str(number), *(by_scheme.get(scheme, "").partition("://")[2] for scheme in SCHEMES))
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    sys.stdout.flush()


def _stop(nodes: list[subprocess.Popen[str]]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for node in nodes:
        node.terminate()
    for node in nodes:
        try:
            node.wait(STOP_TIME)
        except subprocess.TimeoutExpired:
            node.kill()
            node.wait()
        if node.stdout is not None:
            node.stdout.close()
