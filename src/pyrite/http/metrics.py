"""Metrics in Prometheus's text format."""

from __future__ import annotations

import resource
from collections.abc import Iterator

from pyrite.ipc.api.metrics import COUNTER, Sample, Value

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CPU_NAME = "http_process_cpu_seconds_total"
CPU_HELP = "CPU time of the HTTP process."


def own_sample() -> Sample:
    """Return the CPU time of this process as a metric."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return Sample(CPU_NAME, COUNTER, "seconds", CPU_HELP, [], [Value(used.ru_utime + used.ru_stime)])


def lines(sample: Sample) -> Iterator[str]:
    """Yield a metric as lines of text. Label values are names of streams and need no escapes."""
    yield f"# HELP pyrite_{sample.name} {sample.help}\n# TYPE pyrite_{sample.name} {sample.kind}\n"
    for value in sample.values:
        labels = ",".join(f'{name}="{text}"' for name, text in value.labels.items())
        yield f"pyrite_{sample.name}{f'{{{labels}}}' if labels else ''} {value.value}\n"
