"""`pyrite cluster`: a cluster on this machine, and the state of a running one."""

from __future__ import annotations

import argparse
from pathlib import Path

from pyrite.cli.cluster import local, status

_EXAMPLES = """\
examples:
  pyrite cluster local                            three nodes on this machine, until Ctrl-C
  pyrite cluster local --data /tmp/trial          the same, keeping their data
  pyrite cluster status                           the nodes as the broker on this machine sees them
  pyrite cluster status --url https://b:8443 --token TOKEN
"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "cluster",
        help="run a cluster on this machine; show the state of a cluster",
        description="Run a cluster on this machine, or show the state of a running one.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    trial = actions.add_parser("local", help="run several nodes on this machine, until Ctrl-C")
    trial.add_argument("--nodes", type=int, choices=(1, 3, 5), default=3, help="default: 3")
    trial.add_argument("--data", type=Path, metavar="DIR", help="keep the data here (default: nowhere)")
    trial.set_defaults(run=local.run)
    state = actions.add_parser("status", help="show nodes, lag, engine and quorum")
    state.add_argument(
        "--url",
        default="http://127.0.0.1:8080",
        help="an http:// or https:// listener of a node (default: %(default)s)",
    )
    state.add_argument("-u", "--username", help="user name, with the right to administer #")
    state.add_argument("-P", "--password", help="password")
    state.add_argument("--token", help="a token in place of user name and password")
    state.add_argument("--cafile", metavar="FILE", help="trust the certificate authorities in this file")
    state.add_argument("--json", action="store_true", help="print JSON")
    state.set_defaults(run=status.run)
