"""TLS settings and contexts, for the broker and its child processes."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl

from msgspec import Struct

logger = logging.getLogger(__name__)


class TlsSettings(Struct):
    """The settings of the [tls] table that a child process needs."""

    certificate: str
    key: str
    client_ca: str
    require_client_certificate: bool
    certificate_user: str
    minimum_version: str


def new_context(minimum_version: str, certificate: str, key: str) -> ssl.SSLContext:
    """Return the TLS context of a listener, for TLS 1.3 only or for 1.2 and later.

    Raise OSError or ValueError if the files are not a certificate and its key. With an empty `key`, the
    certificate's file contains the key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if minimum_version == "1.3" else ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key or None, password=_no_pass_phrase)
    return context


def _no_pass_phrase() -> str:
    raise ValueError("the key has a pass phrase, which is not supported")


def trust_clients(context: ssl.SSLContext, authorities: str, required: bool) -> None:
    """Accept client certificates signed by these authorities; raise OSError if the file has none."""
    context.load_verify_locations(authorities)
    context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL


def context_of(tls: TlsSettings) -> ssl.SSLContext:
    """Return the TLS context of a child process's listener."""
    context = new_context(tls.minimum_version, tls.certificate, tls.key)
    if tls.client_ca:
        trust_clients(context, tls.client_ca, tls.require_client_certificate)
    return context


def context_or_exit(tls: TlsSettings) -> ssl.SSLContext:
    """Return a TLS context with new certificates; if they cannot be read, exit, to be restarted.

    The broker has just read the same files, and the old certificates must not stay in use.
    """
    try:
        return context_of(tls)
    except (OSError, ValueError) as error:
        logger.error("the certificates cannot be read: %s", error)
        logging.shutdown()
        os._exit(1)


def certificate_user(transport: asyncio.BaseTransport, where: str) -> str | None:
    """Return the user name in the "subject" or "san" of a client's certificate.

    None if the client has no certificate, or `where` is empty.
    """
    shown = transport.get_extra_info("peercert") or {}
    names: list[str] = []
    if where == "san":
        names = [value for kind, value in shown.get("subjectAltName", ()) if kind in ("email", "DNS", "URI")]
    elif where == "subject":
        names = [value for part in shown.get("subject", ()) for kind, value in part if kind == "commonName"]
    return names[0] if names else None
