"""`pyrite cluster status`: the nodes of a cluster, from the API of one of them."""

from __future__ import annotations

import argparse
import base64
import json
import ssl
import sys
import urllib.error
import urllib.request
from typing import Any

from rich.console import Console
from rich.table import Table

from pyrite.process.terminal import printable

PROGRAM = "pyrite cluster status"
TIMEOUT = 10.0


def run(args: argparse.Namespace) -> int:
    """Print the state; the exit code is 1 without a quorum or with a node away."""
    try:
        found = fetch(args, "/api/v1/cluster")
    except urllib.error.HTTPError as error:
        print(f"{PROGRAM}: {args.url}: {printable(_detail(error))}", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        print(f"{PROGRAM}: {args.url}: {printable(str(reason))}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        _show(found)
    return 0 if found["has_quorum"] and all(node["is_here"] for node in found["nodes"]) else 1


def fetch(args: argparse.Namespace, path: str) -> dict[str, Any]:
    """Return the answer of a node's API."""
    if not args.url.startswith(("http://", "https://")):
        raise ValueError("expected http://host:port or https://host:port")
    request = urllib.request.Request(args.url.rstrip("/") + path)  # noqa: S310
    if args.token:
        request.add_header("Authorization", f"Bearer {args.token}")
    elif args.username:
        pair = f"{args.username}:{args.password or ''}".encode()
        request.add_header("Authorization", "Basic " + base64.b64encode(pair).decode())
    context = ssl.create_default_context(cafile=args.cafile) if args.url.startswith("https") else None
    with urllib.request.urlopen(request, timeout=TIMEOUT, context=context) as answer:  # noqa: S310
        found = json.load(answer)
    if not isinstance(found, dict):
        raise ValueError("unexpected answer")
    return found


def _detail(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["detail"])
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"


def _show(found: dict[str, Any]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 120)
    quorum = "quorum" if found["has_quorum"] else "NO QUORUM"
    console.print(f"cluster {found['name']}: {quorum}; seen by node {found['node']}", highlight=False)
    if found["trouble"]:
        console.print(f"  {printable(found['trouble'])}", markup=False, highlight=False)
    nodes = Table("node", "here", "group", "lag", "hash")
    for node in found["nodes"]:
        lag = max(0, found["last"] - node["sequence"])
        nodes.add_row(
            node["name"], "yes" if node["is_here"] else "NO", str(node["sequence"]), str(lag), node["hash"]
        )
    console.print(nodes)
    engines = Table("engine", "state")
    for engine in found["engines"]:
        engines.add_row(engine["name"], engine["state"])
    console.print(engines)
