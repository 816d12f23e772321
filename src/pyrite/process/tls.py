"""TLS settings and contexts, for the broker and its child processes."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl

from msgspec import Struct

logger = logging.getLogger(__name__)


class TlsSettings(Struct):
    """What a TLS listener needs of the [tls] table."""

    certificate: str
    key: str
    client_ca: str
    require_client_certificate: bool
    certificate_user: str
    minimum_version: str


def new_context(minimum_version: str, certificate: str, key: str) -> ssl.SSLContext:
    """Make the TLS context of a listener; with "1.3" for that version alone, else from 1.2 on.

    Raise OSError or ValueError if the files are not a certificate and its key; an empty `key` means that the
    key is in the certificate's file.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if minimum_version == "1.3" else ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key or None, password=_no_pass_phrase)
    return context


def _no_pass_phrase() -> str:
    raise ValueError("the key has a pass phrase, and there is no one to ask for it")


def trust_clients(context: ssl.SSLContext, authorities: str, required: bool) -> None:
    """Accept client certificates signed by these authorities; OSError if the file has none."""
    context.load_verify_locations(authorities)
    context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL


def context_of(tls: TlsSettings) -> ssl.SSLContext:
    """Make the TLS context of a child process's listener."""
    context = new_context(tls.minimum_version, tls.certificate, tls.key)
    if tls.client_ca:
        trust_clients(context, tls.client_ca, tls.require_client_certificate)
    return context


def context_or_exit(tls: TlsSettings) -> ssl.SSLContext:
    """Make a TLS context of new certificates. If they cannot be read, end this process: it is started again.

    The broker could read them a moment ago, and the previous ones must not stay in force.
    """
    try:
        return context_of(tls)
    except (OSError, ValueError) as error:
        logger.error("the certificates cannot be read: %s", error)
        logging.shutdown()
        os._exit(1)


def certificate_user(transport: asyncio.BaseTransport, where: str) -> str | None:
    """Return the user name in a client's certificate, from its "subject" or "san".

    None if the client has shown no certificate, or user names are not taken from certificates.
    """
    shown = transport.get_extra_info("peercert") or {}
    names: list[str] = []
    if where == "san":
        names = [value for kind, value in shown.get("subjectAltName", ()) if kind in ("email", "DNS", "URI")]
    elif where == "subject":
        names = [value for part in shown.get("subject", ()) for kind, value in part if kind == "commonName"]
    return names[0] if names else None
