"""Publishes a pipeline's status as a retained message on `$pipelines/NAME`, for the dashboard and `pyrite
top`.

No stream that captures `#` captures topics that start with `$`, so the pipeline does not read its own status.
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
from pyrite.pipeline.errors import PipelineError
from pyrite.storage.query import SCHEMA, QueryError

TOPIC = "$pipelines/"
_COLUMNS = pa.schema([SCHEMA.field(name) for name in ("topic", "payload", "qos", "retain", "content_type")])


def announce(broker: str, name: str, state: str, **figures: Any) -> None:
    """Publish the pipeline's status; raises PipelineError if the broker refuses.

    An unreachable broker is ignored here: the next run reports it.
    """
    said = {"name": name, "state": state, "time": datetime.now(UTC).isoformat(), **figures}
    row = {
        "topic": TOPIC + name,
        "payload": json.dumps(said).encode(),
        "qos": 0,
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
        raise PipelineError(
            f"the pipeline continues, but its status is not published on {TOPIC}{name} and the "
            f"dashboard does not show it: {' '.join(str(error).split())}. If another user has run a "
            "pipeline of this name, run it as that user, or from a folder with another name; its "
            f"user needs the right to publish on {TOPIC}#"
        ) from None
