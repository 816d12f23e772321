"""How a pipeline reaches its broker. Who it is comes from the environment: no file has a password in it."""

from __future__ import annotations

import os
from typing import Any

VARIABLES = {
    "PYRITE_USERNAME": ("username", "username"),
    "PYRITE_PASSWORD": ("password", "password"),
    "PYRITE_TOKEN": ("token", "token"),
    "PYRITE_CA_FILE": ("ca_file", "caFile"),
    "PYRITE_CERT_FILE": ("cert_file", "certFile"),
    "PYRITE_KEY_FILE": ("key_file", "keyFile"),
}
"""Variables, and what each is called by `FlightLog` and by Spark's source and sink."""


def credentials() -> dict[str, Any]:
    """Return who a pipeline is, for `FlightLog`."""
    return {name: os.environ[variable] for variable, (name, _) in VARIABLES.items() if variable in os.environ}


def spark_options(broker: str) -> dict[str, str]:
    """Return the options with which Spark's source and sink reach a broker."""
    who = {name: os.environ[variable] for variable, (_, name) in VARIABLES.items() if variable in os.environ}
    return {"broker": broker, **who}
