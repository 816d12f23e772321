"""The table of commands. Publish is not in it: publishing.py handles it in runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyrite.broker.consumers import ConsumerError, NotAllowed
from pyrite.protocols.line import acknowledging, consuming, login, presence, subscribing, topics
from pyrite.protocols.line.frames import FrameError, Line, error
from pyrite.topics.filters import InvalidTopic

if TYPE_CHECKING:
    from pyrite.protocols.line.connection import LineConnection

COMMANDS: dict[str, Callable[[LineConnection, Line], None]] = {
    "Connect": login.connect,
    "Subscribe": subscribing.subscribe,
    "Unsubscribe": subscribing.unsubscribe,
    "Ack": acknowledging.acknowledge,
    "Ping": presence.ping,
    "Pong": presence.pong,
    "List": topics.list_topics,
    "Create": topics.create,
    "Delete": topics.delete,
    "Register": consuming.register,
    "Unregister": consuming.unregister,
    "Pull": consuming.pull,
    "Disconnect": login.disconnect,
}


def run(connection: LineConnection, asked: Line) -> None:
    """Run a command, and answer with an error if it fails; raise errors that end the connection."""
    connection.broker.figures.packets_received += 1
    command = COMMANDS.get(asked.command)
    try:
        if command is None:
            expected = ", ".join(sorted([*COMMANDS, "Publish"]))
            raise FrameError("unknown-command", f"{asked.command!r}: expected one of {expected}")
        command(connection, asked)
    except FrameError as wrong:
        if wrong.ends:
            raise
        connection.say(error(wrong.code, str(wrong)))
    except InvalidTopic as invalid:
        connection.say(error("bad-topic", f"{asked.command}: {invalid}"))
    except NotAllowed as refusal:
        connection.say(error("not-authorized", f"{asked.command}: {refusal}"))
    except ConsumerError as fault:
        connection.say(error("bad-consumer", f"{asked.command}: {fault}"))
