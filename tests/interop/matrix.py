"""The clients, versions and transports that a test runs with.

Delivery is tested over every transport of every client. What a message means does not depend on the
transport, and is tested over TCP alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations, product

import pytest

from .aiomqtt_client import AiomqttClient
from .client import VERSIONS, Client
from .mosquitto_client import MosquittoClient
from .mqttjs_client import MqttjsClient
from .paho_client import PahoClient

CLIENTS: dict[str, type[Client]] = {
    "paho": PahoClient,
    "aiomqtt": AiomqttClient,
    "mosquitto": MosquittoClient,
    "mqttjs": MqttjsClient,
}


def clients(
    names: Iterable[str] = CLIENTS, versions: Iterable[str] = VERSIONS, every_transport: bool = False
) -> pytest.MarkDecorator:
    """Run a test with these clients in these versions, over TCP or over each of their transports."""
    cases = [
        pytest.param((name, transport, version), id=f"{name}-{transport}-{version}")
        for name in names
        for transport, version in product(CLIENTS[name].transports if every_transport else ["tcp"], versions)
    ]
    return pytest.mark.parametrize("client", cases, indirect=True)


every_client = clients()
every_client_of_mqtt_5 = clients(versions=["5.0"])
every_client_and_transport = clients(every_transport=True)
every_client_and_transport_of_mqtt_5 = clients(versions=["5.0"], every_transport=True)
every_pair_of_clients = pytest.mark.parametrize(
    ("publisher_name", "subscriber_name"),
    [pytest.param(*pair, id="-to-".join(pair)) for pair in permutations(CLIENTS, 2)],
)
every_pair_of_versions = pytest.mark.parametrize(
    ("publisher_version", "subscriber_version"),
    [pytest.param(*pair, id="-to-".join(pair)) for pair in product(VERSIONS, VERSIONS)],
)
