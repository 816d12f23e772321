"""The Flight process: `python -m pyrite.flight DESCRIPTOR`, with the descriptor of a socket to the broker."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from pyrite.flight.control import BrokerGone, Control
from pyrite.logs import parse_levels, start_logging
from pyrite.plain_arrow import keep_pandas_out


def options(settings: dict[str, Any]) -> dict[str, Any]:
    """Return what Flight wants to know of where it listens."""
    host = f"[{settings['host']}]" if ":" in settings["host"] else settings["host"]
    tls = settings["tls"]
    if tls is None:
        return {"location": f"grpc://{host}:{settings['port']}"}
    found: dict[str, Any] = {
        "location": f"grpc+tls://{host}:{settings['port']}",
        "tls_certificates": [(Path(tls["certificate"]).read_bytes(), Path(tls["key"]).read_bytes())],
    }
    if tls["client_ca"]:
        found["root_certificates"] = Path(tls["client_ca"]).read_bytes()
        found["verify_client"] = tls["require_client_certificate"]
    return found


def main(descriptor: int) -> int:
    """Serve until the broker is gone."""
    keep_pandas_out()
    from pyrite.flight.service import Service
    from pyrite.log.bulk import LogFolder
    from pyrite.log.staging import Staging

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the broker, which ends this
    control = Control(socket.socket(fileno=descriptor))
    settings = control.settings()
    start_logging(parse_levels(settings["logging"]["levels"]), settings["logging"]["format"])
    control.start()
    data = Path(settings["data"])
    tls = settings["tls"] or {}
    named = tls.get("certificate_user") == "san" and tls["require_client_certificate"]
    try:
        log, staging = LogFolder(data), Staging(data)
        service = Service(log, staging, control, named, **options(settings))
    except Exception as error:  # whatever gRPC says of a port
        control.say(failed=" ".join(str(error).split()))
        return 1
    try:
        control.say(port=service.port)
        control.gone.wait()
    except BrokerGone:
        pass
    # Calls that are under way would have Flight wait for them; and no one is left to answer to.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
