"""How a pipeline reaches its broker. Who it is comes from the environment: no file has a password in it."""

from __future__ import annotations

import os
from typing import Any

NAMES = ("username", "password", "token", "ca_file", "cert_file", "key_file")
"""What `FlightLog` is told; PYRITE_USERNAME and so on are the variables."""


def credentials() -> dict[str, Any]:
    """Return who a pipeline is, for `FlightLog`."""
    variables = {name: f"PYRITE_{name.upper()}" for name in NAMES}
    return {name: os.environ[variable] for name, variable in variables.items() if variable in os.environ}


def spark_options(broker: str) -> dict[str, str]:
    """Return the options with which Spark's source and sink reach a broker: caFile is cafile to them."""
    return {"broker": broker, **{name.replace("_", ""): value for name, value in credentials().items()}}
