"""Three workers share a hundred jobs: each job goes to one of them and is done once.

python examples/workers.py [URL]
"""

from __future__ import annotations

import asyncio
import sys

from pyrite.client import Client

JOBS = 100
WORKERS = 3


async def work(url: str, name: str) -> int:
    """Fetch jobs until there are none; returns how many were done."""
    done = 0
    async with Client(url) as client:
        consumer = await client.consumer("workers", "jobs/#")
        while jobs := await consumer.pull(5):
            for job in jobs:
                await asyncio.sleep(0.001)  # the work
                print(name, job.topic, job.payload.decode())
            # Jobs that a worker does not acknowledge within 30 seconds, because it died, go to another
            # worker.
            await consumer.ack(jobs)
            done += len(jobs)
    return done


async def main(url: str) -> None:
    """Publish the jobs and run the workers."""
    async with Client(url) as client:
        await asyncio.gather(*(client.publish(f"jobs/{number}", "sweep", qos=1) for number in range(JOBS)))
        done = await asyncio.gather(*(work(url, f"worker {number}") for number in range(WORKERS)))
        print(f"{sum(done)} jobs done")
        consumer = await client.consumer("workers", "jobs/#")
        await consumer.delete()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "mqtt://localhost:1883"))
