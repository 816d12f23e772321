"""Fuzz an MQTT connection: any bytes, in any pieces, at any pace, next to clients that must not notice.

    make fuzz                                                      for a minute
    .venv/bin/python fuzz/fuzz_mqtt.py fuzz/corpus                 until it finds something
    .venv/bin/python fuzz/fuzz_mqtt.py build/fuzz/crash-...        what it found, again

The input is a sequence of steps. A step is a byte that says what to do, which for most values is to feed a
connection: the top bit chooses one of two, the others say how many of the bytes that follow, as one piece.
See `Step` for the rest. fuzz/make_corpus.py writes the first inputs.
"""

from __future__ import annotations

import logging
import sys
from enum import IntEnum
from pathlib import Path

import atheris

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

with atheris.instrument_imports(include=["pyrite"]):
    from tests.support.core import Client, Core, no_internal_errors

    from pyrite.broker.limits import Limits
    from pyrite.protocols.mqtt.packets import V5, V311, Publish, WillMessage


class Step(IntEnum):
    """What a step may do other than feed as many bytes as it says."""

    TICK = 0
    """Let time pass: a tenth of the square of the next byte, in seconds."""
    READ_SLOWLY = 121
    READ_ALL = 122
    LOSE = 123
    BEGIN_ANEW = 124
    FEED_MORE = 125
    """Feed as many bytes as the next two say."""


LIMITS = Limits(
    max_packet_size=20_000,
    max_inflight=20,
    max_waiting_bytes=4_000,
    max_queued_messages=50,
    max_subscriptions_per_client=20,
    max_topic_levels=8,
    max_retained_messages=20,
    max_sessions=20,
)


class Subject:
    """One of the two connections that are fed: the first of anyone, the second of a client let in."""

    def __init__(self, core: Core, number: int) -> None:
        self.core = core
        self.number = number
        self.client = self.begin()

    def begin(self) -> Client:
        """Open a connection."""
        if self.number == 0:
            return self.core.wire()
        client = self.core.connect(
            "subject",
            V5,
            clean_start=False,
            session_expiry=60,
            receive_maximum=3,
            topic_alias_maximum=2,
            will=WillMessage(b"will", b"gone", 1, False, {"will_delay": 1}),
        )
        client.subscribe("#", qos=2, subscription_identifier=1)
        return client

    def feed(self, data: bytes) -> None:
        """Give the connection a piece; one that is closed is replaced."""
        if self.client.closed:
            self.client.drop()
            self.client = self.begin()
        self.client.send(data)
        self.check()

    def check(self) -> None:
        """Check that all that came out is made of packets."""
        self.client.version = self.client.connection.version
        self.client.received()


def play(data: bytes) -> None:
    """Do what the input says, and check that everyone else is served as if nothing had been."""
    core = Core(LIMITS)
    witness = core.connect("a witness", V5)
    witness.subscribe("#", qos=0)
    old = core.connect("an old witness", V311)
    old.subscribe("+/#", qos=2)
    subjects = [Subject(core, 0), Subject(core, 1)]
    at = 0
    while at < len(data):
        step = data[at]
        at += 1
        subject = subjects[step >> 7]
        match step & 0x7F:
            case Step.TICK:
                core.tick(data[at] ** 2 / 10 if at < len(data) else 1)
                at += 1
            case Step.READ_SLOWLY:
                subject.client.transport.slow = True
            case Step.READ_ALL:
                subject.client.take_all()
            case Step.LOSE:
                subject.client.drop()
                subject.client.transport.closed = True
            case Step.BEGIN_ANEW:
                subject.client.drop()
                subject.client = subject.begin()
            case length:
                if length == Step.FEED_MORE:
                    length = int.from_bytes(data[at : at + 2], "big")
                    at += 2
                subject.feed(data[at : at + length])
                at += length
    for client in (witness, old):
        while client.finish():
            pass
    speaker = core.connect("a speaker", V5)
    speaker.publish("still/alive", b"yes", qos=1)
    assert Publish(b"still/alive", b"yes") in witness.received(), "the witness was cut off"
    assert any(message.topic == b"still/alive" for message in old.messages()), "the old witness was cut off"
    for subject in subjects:
        subject.check()
        subject.client.drop()
    assert core.broker.figures.connections == 3
    core.tick(1e10)
    assert core.broker.figures.connections == 3
    for client in (witness, old, speaker):
        client.received()
        assert client.ping(), "a bystander was cut off"


def main() -> None:
    """Run the fuzzer; its options are libFuzzer's. What it finds goes to build/fuzz, not into the corpus."""
    found = ROOT / "build" / "fuzz"
    found.mkdir(parents=True, exist_ok=True)
    inputs = [found] if any(Path(argument).is_dir() for argument in sys.argv[1:]) else []
    logging.disable(logging.WARNING)
    atheris.Setup([sys.argv[0], f"-artifact_prefix={found}/", *map(str, inputs), *sys.argv[1:]], play)
    with no_internal_errors():
        atheris.Fuzz()


if __name__ == "__main__":
    main()
