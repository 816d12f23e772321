"""Which tests run with which clients: each client, by each transport that it has, in each version of MQTT."""

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


def clients(names: Iterable[str] = CLIENTS, versions: Iterable[str] = VERSIONS) -> pytest.MarkDecorator:
    """Run a test with these clients, by each of their transports, in these versions."""
    cases = [
        pytest.param((name, transport, version), id=f"{name}-{transport}-{version}")
        for name in names
        for transport, version in product(CLIENTS[name].transports, versions)
    ]
    return pytest.mark.parametrize("client", cases, indirect=True)


every_client = clients()
every_client_of_mqtt_5 = clients(versions=["5.0"])
every_qos = pytest.mark.parametrize("qos", [0, 1, 2], ids=lambda qos: f"qos{qos}")
every_pair_of_clients = pytest.mark.parametrize(
    ("publisher_name", "subscriber_name"),
    [pytest.param(*pair, id="-to-".join(pair)) for pair in permutations(CLIENTS, 2)],
)
every_pair_of_versions = pytest.mark.parametrize(
    ("publisher_version", "subscriber_version"),
    [pytest.param(*pair, id="-to-".join(pair)) for pair in product(VERSIONS, VERSIONS)],
)
