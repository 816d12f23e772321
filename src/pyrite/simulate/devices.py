"""Telemetry and faults of a simulated device, determined by a seed."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

WARM_UP = 620
"""Messages before the first fault, so that a baseline can form."""
SPACING = 120
"""Messages from the start of one fault to the start of the next, on one device."""
REST = 60
"""Messages after the start of the last fault."""
DRIFT = 15
"""Messages in a drift."""
DROPOUT = 45
"""Messages missing in a dropout."""
DAY = 86_400.0

KINDS = ("spike", "drift", "dropout")
FIELDS = {"temperature": 10.0, "vibration": 4.0}
"""The fields that spike and drift, with the size of the deviation."""
BROKEN = (
    b"{",
    b"not JSON",
    b"\xff",
    b'["an", "array"]',
    b'{"temperature": "hot"}',
    b'{"count": 1.5, "battery": [1]}',
    b'{"count": 1} {"count": 2}',
)
"""Payloads that match no telemetry schema."""


@dataclass(frozen=True)
class InjectedFault:
    """A deliberate fault, starting at the message with this number."""

    device: int
    kind: str
    field: str
    number: int


@dataclass(frozen=True)
class Telemetry:
    """A message to publish."""

    number: int
    time: float
    """Time of the measurement, in seconds since 1970."""
    payload: bytes
    malformed: bool
    fault: InjectedFault | None
    """The fault that starts with this message or, for a dropout, ended before it."""


def plan_faults(devices: int, messages: int, count: int, seed: int) -> list[InjectedFault]:
    """Choose device, kind and start of each fault."""
    slots = range(WARM_UP, messages - REST - DROPOUT, SPACING)
    if count > devices * len(slots):
        needed = WARM_UP + REST + DROPOUT + SPACING * (math.ceil(count / devices) - 1) + 1
        raise ValueError(
            f"{count} faults do not fit into {messages} messages of each of {devices} devices: needs "
            f"{needed} (rate times seconds)"
        )
    chance = random.Random(f"faults {seed}")  # noqa: S311
    places = chance.sample([(device, slot) for device in range(devices) for slot in slots], count)
    faults = []
    for turn, (device, slot) in enumerate(sorted(places)):
        kind = KINDS[turn % len(KINDS)]
        field = "silence" if kind == "dropout" else chance.choice(sorted(FIELDS))
        faults.append(InjectedFault(device, kind, field, slot))
    return faults


def telemetry(
    device: int, times: Iterator[float], faults: list[InjectedFault], malformed: float, seed: int
) -> Iterator[Telemetry]:
    """Yield the messages of a device at these times; `malformed` is the share of malformed ones."""
    chance = random.Random(f"device {device} {seed}")  # noqa: S311
    base, phase = chance.uniform(18, 26), chance.uniform(0, 2 * math.pi)
    hum, battery = chance.uniform(1.5, 3.0), chance.uniform(60, 100)
    shake = 0.0
    ended: InjectedFault | None = None
    for number, time in enumerate(times):
        shake = 0.6 * shake + chance.gauss(0, 0.08)
        values = {
            "temperature": base + 5 * math.sin(2 * math.pi * time / DAY + phase) + chance.gauss(0, 0.3),
            "vibration": hum + shake + chance.gauss(0, 0.05),
            "battery": max(0.0, battery - number * 0.002 + chance.gauss(0, 0.02)),
        }
        broken = chance.random() < malformed
        begun = None
        dropped = False
        for fault in faults:
            since = number - fault.number
            if fault.kind == "dropout":
                dropped = dropped or 0 <= since < DROPOUT
                ended = fault if dropped else ended
            elif 0 <= since < (DRIFT if fault.kind == "drift" else 1):
                part = (since + 1) / DRIFT if fault.kind == "drift" else 1.0
                values[fault.field] += part * FIELDS[fault.field]
                broken = False
                begun = fault if since == 0 else begun
        if dropped:
            continue
        if ended is not None:
            begun, ended, broken = ended, None, False
        if broken:
            yield Telemetry(number, time, chance.choice(BROKEN), True, None)
            continue
        told = {name: round(value, 3) for name, value in values.items()}
        moment = datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds")
        payload = json.dumps({"time": moment.replace("+00:00", "Z"), **told, "count": number})
        yield Telemetry(number, time, payload.encode(), False, begun)
