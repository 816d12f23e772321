"""The newsroom's test sequence, after a prompt.

newsroom.py [--port PORT] [--max-age SECONDS]
"""

import sys
from pathlib import Path

if not __name__.startswith("pyrite."):  # run or imported as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from pyrite.classic import bootstrap

bootstrap.find_dependencies(__name__)

import argparse
import threading
import time
from collections.abc import Sequence

from pyrite.classic import common
from pyrite.classic.newsroom.client import Client
from pyrite.classic.newsroom.server import MAX_AGE, Server


class Steps:
    """The steps of the sequence, each printed, and whether all succeeded."""

    def __init__(self, port: int, max_age: float) -> None:
        self.good = True
        self._max_age = max_age
        print("Step 1: the server starts", flush=True)
        self._server = Server(port=port, max_age=max_age)
        self._serving = threading.Thread(target=self._server.start)
        self._serving.start()

    def end(self) -> None:
        self._server.stop()
        self._serving.join()

    def run(self) -> None:
        """Run all further steps."""
        print("Step 2: publishers connect, and publish what is stored", flush=True)
        publishers = self._connect("p", 2)
        self._publish(publishers, "the first")
        print("Step 3: subscribers connect, subscribe, and receive what was stored", flush=True)
        subscribers = self._connect("s", 3)
        wanted = [["NEWS"], ["WEATHER"], ["NEWS", "WEATHER"]]
        for one, subjects in zip(subscribers, wanted, strict=True):
            for subject in subjects:
                self._see(f"{one.name} subscribes to {subject}", one.subscribe(subject), "SUB_ACK")
        self._receive(subscribers, wanted, "the first")
        print("Step 4: publishers go on, and subscribers receive what is new", flush=True)
        self._publish(publishers, "the second")
        self._receive(subscribers, wanted, "the second")
        error = "ERROR unlisted subject 'SPORT': expected NEWS or WEATHER"
        print("Error handling 1: a subscriber subscribes to an unlisted subject", flush=True)
        self._see("Subscriber 1 subscribes to SPORT", subscribers[0].subscribe("SPORT"), error)
        print("Error handling 2: a publisher publishes on an unlisted subject", flush=True)
        self._see("Publisher 1 publishes on SPORT", publishers[0].publish("SPORT", "a goal"), error)
        print("Step 5: all subscribers disconnect", flush=True)
        self._disconnect(subscribers)
        print(f"Step 6: of what is published now, what is older than {self._max_age:g} s is not received")
        self._publish(publishers, "the old")
        print(f"waiting for {self._max_age:g} s", flush=True)
        time.sleep(self._max_age + 0.5)
        self._publish(publishers, "the recent")
        for one in subscribers:
            self._see(f"{one.name} reconnects", one.reconnect(), "CON_ACK")
        self._receive(subscribers, wanted, "the recent")
        print("Step 7: all clients disconnect", flush=True)
        self._disconnect([*subscribers, *publishers])

    def _see(self, text: str, found: object, expected: object) -> None:
        """Print the result of a step, and record whether it is the expected one."""
        print(f"{text}: {found}", flush=True)
        if found != expected:
            self.good = False
            print(f"FAILED: expected {expected}", flush=True)

    def _connect(self, action: str, count: int) -> list[Client]:
        clients = [Client(action, str(number), port=self._server.port) for number in range(1, count + 1)]
        for one in clients:
            self._see(f"{one.name} connects", one.reply, "CONN_ACK")
        return clients

    def _disconnect(self, clients: Sequence[Client]) -> None:
        for one in clients:
            self._see(f"{one.name} disconnects", one.disconnect(), "DISC_ACK")

    def _publish(self, publishers: Sequence[Client], what: str) -> None:
        """Publish on NEWS with the first publisher, and on WEATHER with the second."""
        for one, subject in zip(publishers, ("NEWS", "WEATHER"), strict=True):
            confirmed = f"{one.name}|PUB|{subject}|{what} on {subject}"
            self._see(f"{one.name} publishes", one.publish(subject, f"{what} on {subject}"), confirmed)

    def _receive(self, subscribers: Sequence[Client], wanted: Sequence[Sequence[str]], what: str) -> None:
        """Check that subscribers have received one message on each of their subjects, and nothing else."""
        for one, subjects in zip(subscribers, wanted, strict=True):
            received = sorted(one.wait_for(len(subjects)))
            one.received.clear()
            expected = [(subject, f"{what} on {subject}") for subject in subjects]
            self._see(f"{one.name} receives", received, expected)


def run(port: int, max_age: float) -> bool:
    """Run the sequence; returns True if every step succeeded."""
    steps = Steps(port, max_age)
    try:
        steps.run()
    finally:
        steps.end()
    return steps.good


def _answer() -> str:
    return input("Run the test sequence? (Y/N) ").strip().lower()


@common.program
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog=common.name(), description="the newsroom's test sequence")
    parser.add_argument("--port", type=common.port, default=12345, help="0: any free one (default: 12345)")
    parser.add_argument("--max-age", type=float, default=MAX_AGE, help="seconds (default: 30)")
    asked = parser.parse_args(arguments)
    try:
        answer = _answer()
        while answer not in ("y", "n"):
            print("please answer Y or N")
            answer = _answer()
        if answer == "y":
            return 0 if run(asked.port, asked.max_age) else 1
        print("the test sequence was not run")
    except EOFError:
        print("\nthe test sequence was not run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
