"""The newsroom's test sequence, after a question.

newsroom.py [--port PORT] [--max-age SECONDS]
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __name__.startswith("pyrite."):  # started or imported as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from pyrite.classic import bootstrap

bootstrap.find_dependencies(__name__)

import argparse
import time
from collections.abc import Sequence

from pyrite.classic.newsroom.client import Client
from pyrite.classic.newsroom.server import MAX_AGE, Server


def sequence(port: int, max_age: float) -> bool:
    """Run the sequence, print each step, and tell whether all went as it should."""
    good = True

    def step(text: str, found: object, expected: object) -> None:
        nonlocal good
        right = found == expected
        good = good and right
        print(f"{'ok    ' if right else 'FAILED'} {text}: {found}", flush=True)

    with Server(port=port, max_age=max_age) as server:
        print(f"server started on {server.host}:{server.port}", flush=True)
        publisher = Client("p", "1", port=server.port)
        step("Publisher 1 connects", publisher.reply, "CONN_ACK")
        step("publishes on NEWS", publisher.publish("NEWS", "stored before"), "PUB_ACK")
        subscribers = [Client("s", number, port=server.port) for number in ("1", "2")]
        for one in subscribers:
            step(f"{one.name} connects", one.reply, "CONN_ACK")
            step(f"{one.name} subscribes to NEWS", one.subscribe("NEWS"), "SUB_ACK")
            step(f"{one.name} receives what was stored", one.wait_for(1), [("NEWS", "stored before")])
        step("publishes on NEWS", publisher.publish("NEWS", "just in"), "PUB_ACK")
        for one in subscribers:
            step(f"{one.name} receives it", one.wait_for(2)[1:], [("NEWS", "just in")])
        step("publishing on SPORT is refused", publisher.publish("SPORT", "x").partition(" ")[0], "ERROR")
        step("subscribing to SPORT is refused", subscribers[0].subscribe("SPORT").partition(" ")[0], "ERROR")
        for one in subscribers:
            step(f"{one.name} leaves", one.disconnect(), "DISC_ACK")
        step("publishes what will be too old", publisher.publish("NEWS", "old"), "PUB_ACK")
        print(f"waiting for {max_age:g} s", flush=True)
        time.sleep(max_age + 0.5)
        step("publishes what will not", publisher.publish("NEWS", "fresh"), "PUB_ACK")
        for one in subscribers:
            step(f"{one.name} returns", one.reconnect(), "CON_ACK")
            step(f"{one.name} receives only the second", one.wait_for(3)[2:], [("NEWS", "fresh")])
        for one in (*subscribers, publisher):
            step(f"{one.name} leaves", one.disconnect(), "DISC_ACK")
    return good


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="newsroom.py", description="the newsroom's test sequence")
    parser.add_argument("--port", type=int, default=12345, help="(default: 12345)")
    parser.add_argument("--max-age", type=float, default=MAX_AGE, help="seconds (default: 30)")
    asked = parser.parse_args(arguments)
    try:
        answer = input("Run the test sequence? (Y/N) ")
    except (EOFError, KeyboardInterrupt):
        answer = "n"
    if answer.strip().lower() not in ("y", "yes"):
        print("nothing was run")
        return 0
    try:
        return 0 if sequence(asked.port, asked.max_age) else 1
    except (OSError, TimeoutError) as error:
        print(f"newsroom.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
