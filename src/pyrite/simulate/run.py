"""Runs simulated devices: a connection each, QoS 1, and a record of what went wrong on purpose."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pyrite.client import Client
from pyrite.simulate.devices import Fault, Reading, plan_faults, readings

AT_ONCE = 50
"""Devices that connect at the same time."""


@dataclass(frozen=True)
class Options:
    """What is simulated."""

    broker: str = "mqtt://127.0.0.1:1883"
    devices: int = 50
    rate: float = 1.0
    """Messages a second of each device."""
    seconds: float = 30.0
    faults: int = 0
    malformed: float = 0.01
    """The share of messages that cannot be read."""
    seed: int = 1
    speed: float = 1.0
    """How fast the devices' clocks run; they show the right time at the end."""
    prefix: str = "devices"
    record: Path | None = None
    """A file for the faults, as lines of JSON."""


@dataclass
class Count:
    """What was sent so far."""

    published: int = 0
    malformed: int = 0
    faults: int = 0


class Simulation:
    """Devices that send, each at its own pace, until all have sent everything."""

    def __init__(self, options: Options, tell: Callable[[Count], None]) -> None:
        self._options = options
        self._tell = tell
        self._messages = max(1, round(options.rate * options.seconds))
        self._faults = plan_faults(options.devices, self._messages, options.faults, options.seed)
        self._count = Count()
        self._connecting = asyncio.Semaphore(AT_ONCE)
        self._ready = asyncio.Barrier(options.devices)
        self._begin = 0.0
        self._record = None if options.record is None else options.record.open("w")

    async def run(self) -> Count:
        """Send everything; return how much it was. All of it was acknowledged."""
        failed: BaseExceptionGroup[Exception] | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                for device in range(self._options.devices):
                    tasks.create_task(self._device(device))
        except* Exception as group:
            failed = group
        finally:
            if self._record is not None:
                self._record.close()
        if failed is not None:
            raise failed.exceptions[0]  # the others were cancelled for it, or are of the same kind
        return self._count

    async def _device(self, device: int) -> None:
        options = self._options
        name = f"dev-{device:03d}"
        client = Client(options.broker, client_id=f"{options.prefix}-{name}", longest_pause=1.0)
        async with self._connecting:
            await client.connect()
        try:
            if await self._ready.wait() == 0:
                self._begin = time.time()
            await self._ready.wait()
            await self._send(device, name, client)
        finally:
            await client.close()

    async def _send(self, device: int, name: str, client: Client) -> None:
        options = self._options
        faults = [fault for fault in self._faults if fault.device == device]
        topic = f"{options.prefix}/{name}/telemetry"
        for reading in readings(device, self._times(device), faults, options.malformed, options.seed):
            await asyncio.sleep(max(0.0, self._due(device, reading.number) - time.time()))
            await client.publish(topic, reading.payload, qos=1)
            self._sent(name, reading)

    def _due(self, device: int, number: int) -> float:
        """Return when a device sends a message; they take turns."""
        return self._begin + (number + device / self._options.devices) / self._options.rate

    def _times(self, device: int) -> Iterator[float]:
        """Yield what a device's clock shows at each message. It never shows a time that is yet to come."""
        options = self._options
        end = self._begin + self._messages / options.rate
        for number in range(self._messages):
            yield end - (end - self._due(device, number)) * options.speed

    def _sent(self, name: str, reading: Reading) -> None:
        self._count.published += 1
        self._count.malformed += reading.malformed
        if reading.fault is not None:
            self._count.faults += 1
            self._note(name, reading, reading.fault)
        self._tell(self._count)

    def _note(self, name: str, reading: Reading, fault: Fault) -> None:
        if self._record is not None:
            moment = datetime.fromtimestamp(reading.time, UTC).isoformat(timespec="milliseconds")
            told = {"device": name, "kind": fault.kind, "field": fault.field, "time": moment}
            self._record.write(json.dumps(told) + "\n")
            self._record.flush()
