"""What a pipeline says of itself: a retained message on `$pipelines/NAME`, for who wants to see it run.

A topic that begins with `$` is in no stream that captures `#`: what a pipeline says of itself is not among
the messages that it processes.
"""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyarrow import flight

from pyrite.client.log import FlightLog
from pyrite.pipeline.connection import credentials
from pyrite.storage.query import SCHEMA, QueryError

TOPIC = "$pipelines/"
_COLUMNS = pa.schema([SCHEMA.field(name) for name in ("topic", "payload", "qos", "retain", "content_type")])


class NotAnnounced(Exception):
    """The broker does not take what a pipeline says of itself; the text says why, and what to do."""


def announce(broker: str, name: str, state: str, **figures: Any) -> None:
    """Say what a pipeline is doing; NotAnnounced if the broker does not want to know.

    If there is no broker, nothing is said: whoever needs one finds out.
    """
    said = {"name": name, "state": state, "time": datetime.now(UTC).isoformat(), **figures}
    row = {
        "topic": TOPIC + name,
        "payload": json.dumps(said).encode(),
        "qos": 1,
        "retain": True,
        "content_type": "application/json",
    }
    sink = "pipeline-" + re.sub(r"[^A-Za-z0-9_-]", "_", name)
    try:
        with FlightLog(broker, retry=0, **credentials()) as log:
            staged = log.stage(sink, "state", _COLUMNS, [pa.RecordBatch.from_pylist([row], _COLUMNS)])
            log.commit(sink, time.time_ns() // 1_000_000, staged.parts)
    except (ConnectionError, TimeoutError):
        pass
    except (OSError, QueryError, flight.FlightError) as error:
        raise NotAnnounced(
            f"the pipeline goes on, but no one sees its state on {TOPIC}{name}, nor in the dashboard: "
            f"{' '.join(str(error).split())}. If another user has run one of this name, run it as that "
            f"user, or from a folder of another name; and see that its user may publish on {TOPIC}#"
        ) from None
