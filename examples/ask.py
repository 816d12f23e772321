"""Request and response over MQTT 5: the request names the response topic and carries correlation data.

python examples/ask.py [URL]
"""

from __future__ import annotations

import asyncio
import sys

from pyrite.client import Client, Subscription


async def answer(client: Client, questions: Subscription) -> None:
    """Answer every request with its payload in capitals."""
    async for question in questions:
        await client.publish(
            question.properties["response_topic"],
            question.payload.upper(),
            qos=1,
            properties={"correlation_data": question.properties["correlation_data"]},
        )


async def main(url: str) -> None:
    """Send two requests and print the responses."""
    async with (
        Client(url) as server,
        Client(url) as client,
        server.subscribe("questions", qos=1) as questions,
        client.subscribe(f"answers/{client.client_id}", qos=1) as answers,
    ):
        answering = asyncio.create_task(answer(server, questions))
        for number, question in enumerate((b"is anyone there?", b"who?")):
            properties = {
                "response_topic": f"answers/{client.client_id}",
                "correlation_data": number.to_bytes(2, "big"),
            }
            await client.publish("questions", question, qos=1, properties=properties)
            reply = await answers.get(10)
            assert reply.properties["correlation_data"] == properties["correlation_data"]
            print(question.decode(), "->", reply.payload.decode())
        answering.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "mqtt://localhost:1883"))
