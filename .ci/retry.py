"""Run the tests that failed in the last run again, one at a time."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

MAX_RETRIED = 5
FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main() -> int:
    """Return 0 if all failed tests pass alone."""
    if not FAILED.exists():
        print("retry: the suite failed before running tests")
        return 1
    # pytest-xdist appends the group to a test's name: test_name@group.
    names = [re.sub(r"@[^@\]]+$", "", name) for name in json.loads(FAILED.read_text())]
    if not 0 < len(names) <= MAX_RETRIED:
        print(f"retry: {len(names)} tests failed; at most {MAX_RETRIED} are retried")
        return 1
    print("retry: running failed tests alone:", *names, sep="\n  ", flush=True)
    return subprocess.run([sys.executable, "-m", "pytest", "-n0", *names], check=False).returncode  # noqa: S603


if __name__ == "__main__":
    sys.exit(main())
