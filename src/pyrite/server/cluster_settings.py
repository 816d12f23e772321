"""The [cluster] table: what is valid, and the command line's part of it."""

from __future__ import annotations

import argparse
from pathlib import Path
from urllib.parse import urlsplit

from pyrite.cluster.options import NAME, REPLICAS, ClusterOptions
from pyrite.process.endpoints import is_loopback

CLUSTER_RANGES: dict[str, tuple[float, float]] = {
    "cluster.port": (0, 65_535),
    "cluster.replicas": (0, 5),
    "cluster.keep_bytes": (64 * 1024 * 1024, 2**50),
    "cluster.keep_age": (60, 2**31),
}
_NAMES = "expected up to 32 letters, digits, - and _"
_ADDRESS = "expected host:port"


def problem_of(options: ClusterOptions, ephemeral: bool) -> tuple[str, str] | None:
    """Return the first invalid key and what is wrong with its value; None if all is well."""
    if not options.in_use:
        return None
    if not NAME.fullmatch(options.name):
        return "name", _NAMES
    if ephemeral:
        return "name", "a node of a cluster keeps its data on disk; remove ephemeral"
    if not NAME.fullmatch(options.node):
        return "node", _NAMES + "; every node needs a name of its own"
    if options.replicas not in REPLICAS:
        return "replicas", "expected 1, 3 or 5, or 0 for as many as there are routes"
    for key in ("ca", "certificate", "key", "credentials"):
        file = getattr(options, key)
        if file and not Path(file).is_file():
            return key, "expected an existing file"
    if options.certificate and not options.ca:
        return "certificate", "requires cluster.ca"
    return _problem_of_embedded(options) if options.is_embedded else _problem_of_external(options)


def _problem_of_embedded(options: ClusterOptions) -> tuple[str, str] | None:
    for route in options.routes:
        if not _is_address(route):
            return "routes", f"{route!r}: {_ADDRESS}"
    if options.listen and not _is_address(options.listen):
        return "listen", _ADDRESS
    if len({*options.routes}) != len(options.routes):
        return "routes", "expected each node once"
    if options.copies > max(1, len(options.routes)):
        return "replicas", f"expected at most the {max(1, len(options.routes))} nodes of cluster.routes"
    if len(options.routes) == 2:
        return "routes", "two nodes are less safe than one: expected one node, or three or more"
    exposed = [
        address for address in (*options.routes, options.listen) if address and not _is_loopback(address)
    ]
    if exposed and not options.secret:
        return "secret", f"other machines can connect to {exposed[0]}: expected a secret that all nodes share"
    return None


def _problem_of_external(options: ClusterOptions) -> tuple[str, str] | None:
    for url in options.servers or [""]:
        try:
            parts = urlsplit(url)
            valid = parts.scheme in ("nats", "tls") and parts.hostname and (parts.port or True)
        except ValueError:
            valid = False
        if not valid:
            return "engine", "expected embedded, or nats://host:port or tls://host:port, separated by commas"
    if options.routes:
        return "routes", "are for the embedded engine"
    return None


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 65_536


def _is_loopback(address: str) -> bool:
    return is_loopback(address.rpartition(":")[0].strip("[]"))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the cluster's options to a command."""
    group = parser.add_argument_group("cluster")
    group.add_argument("--cluster", metavar="NAME", help="run as a node of this cluster")
    group.add_argument("--node", metavar="ID", help="this node's name, which no other node has")
    group.add_argument(
        "--engine",
        metavar="URLS",
        help="embedded (the default): a nats-server beside each node; or the URLs of a NATS cluster, as in "
        "nats://h1:4222,nats://h2:4222",
    )
    group.add_argument(
        "--routes",
        metavar="HOST:PORT,...",
        help="addresses of the embedded engines of all nodes, including this one",
    )


def override(args: argparse.Namespace, options: ClusterOptions) -> list[str]:
    """Apply the command line; return the keys that it sets."""
    options.name = args.cluster or options.name
    options.node = args.node or options.node
    options.engine = args.engine or options.engine
    if args.routes:
        options.routes = [route.strip() for route in args.routes.split(",")]
    keys = {"cluster": "name", "node": "node", "engine": "engine", "routes": "routes"}
    return [f"cluster.{key}" for option, key in keys.items() if getattr(args, option)]
