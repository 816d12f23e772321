"""The examples in docs/client.md run and print what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Durable

DOCUMENT = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
OUTPUT = [
    "sensors/kitchen b'21.5'\n",
    "sensors/kitchen b'21.5'\n",
    "",
    "b'sweep'\ndefault:0 jobs/1 b'sweep'\njobs/1 b'sweep'\njobs/2 None\n",
]


@pytest.mark.parametrize(("example", "output"), list(zip(EXAMPLES, OUTPUT, strict=True)))
def test_each_example_runs_as_documented(durable: Durable, example: str, output: str) -> None:
    assert "mqtt://localhost:1883" in example
    program = example.replace("mqtt://localhost:1883", durable.url)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stderr, done.stdout) == ("", output)


def test_every_option_is_documented() -> None:
    import inspect

    from pyrite.client import Client

    for name in list(inspect.signature(Client.__init__).parameters)[2:]:
        assert f"`{name}" in DOCUMENT, name
