"""The Python client: MQTT 5.0 and 3.1.1 to any broker, and what only Pyrite has: pull, replay, topics.

`Client` is for asyncio, `BlockingClient` for everything else; docs/client.md tells how to use them.
"""

from typing import TYPE_CHECKING, Any

from pyrite.client.aio import Client
from pyrite.client.blocking import BlockingClient, BlockingConsumer, BlockingSubscription
from pyrite.client.errors import (
    ClientError,
    ConnectError,
    ConnectionLost,
    PublishError,
    Refused,
    RequestError,
    SubscribeError,
)
from pyrite.client.message import Message, Properties, Pulled, Topic, Will
from pyrite.client.requests import Consumer
from pyrite.client.subscription import Subscription
from pyrite.client.wire import Address

if TYPE_CHECKING:
    from pyrite.client.log import FlightLog, read_log

__all__ = [
    "Address",
    "BlockingClient",
    "BlockingConsumer",
    "BlockingSubscription",
    "Client",
    "ClientError",
    "ConnectError",
    "ConnectionLost",
    "Consumer",
    "FlightLog",
    "Message",
    "Properties",
    "PublishError",
    "Pulled",
    "Refused",
    "RequestError",
    "SubscribeError",
    "Subscription",
    "Topic",
    "Will",
    "read_log",
]


def __getattr__(name: str) -> Any:
    """Import what reads the log when it is asked for: Arrow takes its time, and most clients do without."""
    if name in ("FlightLog", "read_log"):
        from pyrite.client import log

        return getattr(log, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
