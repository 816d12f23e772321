"""Brokers, and the commands with options that connect to them."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator

import pytest
import trustme

from .harness import SECONDS, Commands, Mosquitto, Running, free_port, serving


@pytest.fixture(scope="session")
def broker() -> Iterator[int]:
    """The port of a Pyrite broker that all tests share."""
    with serving() as (_, port):
        yield port


@pytest.fixture
def topic() -> str:
    """A topic used by one test only."""
    return f"test/{uuid.uuid4().hex}"


@pytest.fixture
def commands(broker: int) -> Iterator[Commands]:
    """The commands, connecting to the shared broker."""
    commands = Commands("-h", "127.0.0.1", "-p", str(broker))
    yield commands
    commands.close()


@pytest.fixture
def commands_at() -> Iterator[Callable[..., Commands]]:
    """Factory of commands with other options."""
    made: list[Commands] = []

    def make(*options: str) -> Commands:
        made.append(Commands(*options))
        return made[-1]

    yield make
    for commands in made:
        commands.close()


@pytest.fixture(scope="session")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """A mosquitto with every transport, as an independent implementation."""
    if not shutil.which("mosquitto"):
        pytest.skip("mosquitto is not installed")
    directory = tmp_path_factory.mktemp("mosquitto")
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    certificate.private_key_pem.write_to_path(str(directory / "key.pem"))
    for each in certificate.cert_chain_pems:
        each.write_to_path(str(directory / "cert.pem"), append=True)
    passwords = directory / "passwords"
    subprocess.run(
        ["mosquitto_passwd", "-b", "-c", str(passwords), "ann", "secret"], check=True, timeout=SECONDS
    )
    (directory / "acl").write_text("user ann\ntopic readwrite allowed/#\n")
    where = Mosquitto(
        free_port(), free_port(), free_port(), directory / "mosquitto.sock", directory / "ca.pem"
    )
    configuration = directory / "mosquitto.conf"
    account = (
        "user root\n" if os.geteuid() == 0 else ""
    )  # else it switches to a user that cannot read the key
    configuration.write_text(
        f"{account}allow_anonymous false\npassword_file {passwords}\nacl_file {directory / 'acl'}\n"
        f"listener {where.plain} 127.0.0.1\n"
        f"listener {where.websockets} 127.0.0.1\nprotocol websockets\n"
        f"listener 0 {where.unix}\n"
        f"listener {where.tls} 127.0.0.1\n"
        f"certfile {directory / 'cert.pem'}\nkeyfile {directory / 'key.pem'}\n"
    )
    server = Running("mosquitto", "-c", str(configuration))
    try:
        server.wait_for("running")
        yield where
    finally:
        server.close()
