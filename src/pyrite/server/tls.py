"""Certificates as the settings name them, and whether they have changed."""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path
from typing import Any

from pyrite.process.tls import new_context, trust_clients
from pyrite.server.config import Config, ConfigError, Tls


def tls_context(config: Config) -> ssl.SSLContext:
    """Make the TLS settings of a listener."""
    tls = config.tls
    try:
        context = new_context(tls.minimum_version, tls.certificate, tls.key)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{config.source}: tls.certificate = {tls.certificate!r}, tls.key = {tls.key!r}: "
            f"expected PEM files with a certificate and its key: {error}"
        ) from None
    if tls.client_ca:
        try:
            trust_clients(context, tls.client_ca, tls.require_client_certificate)
        except OSError as error:
            raise ConfigError(
                f"{config.source}: tls.client_ca = {tls.client_ca!r}: "
                f"expected a PEM file with certificates: {error}"
            ) from None
    return context


def own_state(tls: Tls) -> tuple[Any, ...]:
    """Return what stands for the broker's own certificate, and how it is used."""
    return (tls.certificate, tls.key, tls.minimum_version, _digest(tls.certificate), _digest(tls.key))


def trust_state(tls: Tls) -> tuple[Any, ...]:
    """Return what stands for which certificates of clients are taken, and for whose."""
    return (_digest(tls.client_ca), tls.require_client_certificate, tls.certificate_user)


def _digest(file: str) -> bytes:
    return hashlib.sha256(Path(file).read_bytes()).digest() if file else b""
