"""Loads the configured certificates, and detects changes."""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path
from typing import NamedTuple

from pyrite.process.tls import new_context, trust_clients
from pyrite.server.config import Config, ConfigError, Tls


def tls_context(config: Config) -> ssl.SSLContext:
    """Return the TLS context of listeners; raise ConfigError if a file cannot be used."""
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


class Certificates(NamedTuple):
    """Digests of the certificates in use, to detect changes."""

    own: tuple[str, str, str, bytes, bytes]
    """The broker's certificate and its settings."""
    trusted: tuple[bytes, bool, str]
    """The authorities of client certificates and their settings."""


def read_certificates(config: Config) -> Certificates | None:
    """Return the digests of the configured certificates; None if no listener uses TLS."""
    if not any(one.tls for one in config.listeners()):
        return None
    tls: Tls = config.tls
    try:
        return Certificates(
            (tls.certificate, tls.key, tls.minimum_version, _digest(tls.certificate), _digest(tls.key)),
            (_digest(tls.client_ca), tls.require_client_certificate, tls.certificate_user),
        )
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be read: {error.strerror}") from None


def _digest(file: str) -> bytes:
    return hashlib.sha256(Path(file).read_bytes()).digest() if file else b""
