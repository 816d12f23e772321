"""Runs simulated devices, each with its own connection, and records their faults."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pyrite.client import Client
from pyrite.simulate.devices import InjectedFault, Telemetry, plan_faults, telemetry

MAX_CONNECTING = 50
"""Number of devices that connect at the same time."""


@dataclass(frozen=True)
class SimulationOptions:
    """What to simulate."""

    broker: str = "mqtt://127.0.0.1:1883"
    devices: int = 50
    rate: float = 1.0
    """Messages per second and device."""
    seconds: float = 30.0
    faults: int = 0
    malformed: float = 0.01
    """Share of malformed messages."""
    seed: int = 1
    speed: float = 1.0
    """Speed of the devices' clocks, which show the correct time at the end."""
    prefix: str = "devices"
    record: Path | None = None
    """File for the faults, one JSON object per line."""


@dataclass
class Count:
    """What was published so far."""

    published: int = 0
    malformed: int = 0
    faults: int = 0


class Simulation:
    """Devices that publish at their own pace until each has sent all its messages."""

    def __init__(self, options: SimulationOptions, tell: Callable[[Count], None]) -> None:
        self._options = options
        self._tell = tell
        self._messages = max(1, round(options.rate * options.seconds))
        self._faults = plan_faults(options.devices, self._messages, options.faults, options.seed)
        self._count = Count()
        self._connecting = asyncio.Semaphore(MAX_CONNECTING)
        self._ready = asyncio.Barrier(options.devices)
        self._begin = 0.0
        self._record = None if options.record is None else options.record.open("w")

    async def run(self) -> Count:
        """Publish all messages; return the counts once all are acknowledged."""
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
            raise failed.exceptions[0]  # the others were cancelled because of it, or are alike
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
        for reading in telemetry(device, self._times(device), faults, options.malformed, options.seed):
            await asyncio.sleep(max(0.0, self._due(device, reading.number) - time.time()))
            await client.publish(topic, reading.payload, qos=1)
            self._sent(name, reading)

    def _due(self, device: int, number: int) -> float:
        """Return the time of a message; devices take turns."""
        return self._begin + (number + device / self._options.devices) / self._options.rate

    def _times(self, device: int) -> Iterator[float]:
        """Yield the time on a device's clock at each message, which is never in the future."""
        options = self._options
        end = self._begin + self._messages / options.rate
        for number in range(self._messages):
            yield end - (end - self._due(device, number)) * options.speed

    def _sent(self, name: str, reading: Telemetry) -> None:
        self._count.published += 1
        self._count.malformed += reading.malformed
        if reading.fault is not None:
            self._count.faults += 1
            self._note(name, reading, reading.fault)
        self._tell(self._count)

    def _note(self, name: str, reading: Telemetry, fault: InjectedFault) -> None:
        if self._record is not None:
            moment = datetime.fromtimestamp(reading.time, UTC).isoformat(timespec="milliseconds")
            told = {"device": name, "kind": fault.kind, "field": fault.field, "time": moment}
            self._record.write(json.dumps(told) + "\n")
            self._record.flush()
