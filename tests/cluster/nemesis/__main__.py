"""`python -m tests.cluster.nemesis`: run faults against a cluster for some minutes."""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
import tempfile
from pathlib import Path

from tests.cluster.nemesis.faults import FAULTS
from tests.cluster.nemesis.network import why_not
from tests.cluster.nemesis.run import nemesis


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.nemesis")
    parser.add_argument("--minutes", type=float, default=1.0, help="default: 1")
    parser.add_argument("--seed", type=int, help="default: a new one, which is printed")
    parser.add_argument("--only", help=f"faults, separated by commas, of {', '.join(FAULTS)}")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up
    reason = why_not()
    if reason:
        print(reason, file=sys.stderr)
        return 2
    seed = secrets.randbelow(1_000_000) if args.seed is None else args.seed
    print(f"seed {seed}", flush=True)
    only = args.only.split(",") if args.only else None
    with tempfile.TemporaryDirectory(prefix="pyrite-nemesis-", ignore_cleanup_errors=True) as folder:
        report = nemesis(Path(folder), args.minutes * 60, seed, only)
    print(
        f"{report.seconds:.0f} s, {len(report.faults)} faults; {report.sent:,} messages sent, "
        f"{report.acknowledged:,} acknowledged, {report.refused:,} refused, {report.logged:,} in the log "
        f"({report.duplicates:,} of QoS 1 sent again), {report.delivered:,} delivered; "
        f"{report.connections:,} connections"
    )
    for line in report.wrong:
        print(f"WRONG: {line}")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
