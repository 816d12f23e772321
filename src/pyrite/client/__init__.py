"""The Python client: MQTT 5.0 and 3.1.1 to any broker, plus Pyrite's pull, replay and topics.

`Client` is for asyncio, `BlockingClient` for everything else; docs/client.md describes both.
"""

from typing import TYPE_CHECKING, Any

from pyrite.client.address import Address
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
    """Import the log reader on first use: Arrow is slow to load, and most programs do not need it."""
    if name in ("FlightLog", "read_log"):
        from pyrite.client import log

        return getattr(log, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
