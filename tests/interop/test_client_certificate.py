"""A listener that requires client certificates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.process import BrokerProcess

from .client import VERSIONS, Address, Certificates, Message, Refused
from .paho_client import PahoClient

every_version = pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)


@pytest.fixture(scope="module")
def strict(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """The address of a broker that requires client certificates."""
    folder: Path = tmp_path_factory.mktemp("strict")
    config = folder / "pyrite.toml"
    config.write_text(
        f"""
        [tls]
        certificate = "{certificates.server}"
        client_ca = "{certificates.ca}"
        require_client_certificate = true
        """
    )
    listener = ("--listen", "mqtts://127.0.0.1:0")
    with BrokerProcess("--config", str(config), "--ephemeral", *listener, cwd=folder) as broker:
        yield Address("tls", broker.port(), ca=certificates.ca)


@every_version
def test_a_client_with_a_certificate_is_accepted(
    strict: Address, certificates: Certificates, topic: str, version: int
) -> None:
    client = PahoClient(replace(strict, certificate=certificates.client), version)
    try:
        subscriber = client.subscribe(topic)
        client.publish(topic, b"hello")
        assert subscriber.receive() == Message(topic, b"hello", 0)
    finally:
        client.close()


@every_version
def test_a_client_without_a_certificate_is_refused(strict: Address, topic: str, version: int) -> None:
    with pytest.raises(Refused):
        PahoClient(strict, version).subscribe(topic)
