"""The options that say where the broker is, and how to get there: host, URL, credentials, TLS."""

from __future__ import annotations

import argparse
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from pyrite.cli.errors import CommandError, UsageError, reason_of
from pyrite.client import Address
from pyrite.client.wire import PORTS, shown


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the broker is, and the topic that the URL has after it."""

    address: Address
    topic: str | None = None

    def __str__(self) -> str:
        if self.address.scheme == "unix":
            return self.address.path
        text = str(self.address)
        return text if self.address.scheme in ("ws", "wss") else text.partition("://")[2]


def add_broker_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where the broker is, with mosquitto's letters and names."""
    parser.add_argument("--help", action="help", help="show this help and exit")
    broker = parser.add_argument_group("broker")
    broker.add_argument("-h", "--host", help="the broker's host (default: localhost)")
    broker.add_argument("-p", "--port", type=_port, help="its port (default: 1883, or 8883 with TLS)")
    broker.add_argument("--unix", metavar="PATH", help="connect through this Unix domain socket")
    broker.add_argument(
        "-L",
        "--url",
        help="all in one: mqtt[s]://[user[:password]@]host[:port][/topic], ws[s]://host[:port]/path "
        "or unix:///path",
    )
    broker.add_argument(
        "-A", dest="bind_address", default="", metavar="ADDRESS", help="connect from this address"
    )
    broker.add_argument("-u", "--username", help="user name")
    broker.add_argument(
        "-P", "--pw", "--password", metavar="PASSWORD", help="password (one starting with -: -P-secret)"
    )


def add_tls_options(parser: argparse.ArgumentParser) -> None:
    """Add the options about TLS and about what is printed."""
    tls = parser.add_argument_group("TLS")
    tls.add_argument("--cafile", metavar="FILE", help="trust the certificate authorities in this file")
    tls.add_argument(
        "--capath", metavar="DIRECTORY", help="trust the certificate authorities in this directory"
    )
    tls.add_argument("--tls-use-os-certs", action="store_true", help="trust what this system trusts")
    tls.add_argument("--cert", metavar="FILE", help="this client's certificate")
    tls.add_argument("--key", metavar="FILE", help="this client's private key")
    tls.add_argument(
        "--insecure", action="store_true", help="accept a certificate made for another host name"
    )

    output = parser.add_argument_group("diagnostics")
    output.add_argument("-d", "--debug", action="store_true", help="tell on stderr what happens on the wire")
    output.add_argument("--quiet", action="store_true", help="print no error messages; the exit code tells")


def endpoint_of(args: argparse.Namespace) -> Endpoint:
    """Find out where to connect to: a URL, a Unix domain socket, or a host and port."""
    tls_options = bool(args.cafile or args.capath or args.tls_use_os_certs or args.cert)
    if bool(args.key) != bool(args.cert):
        raise UsageError("--cert and --key belong together: give both.")
    if args.unix is not None:
        if args.url or args.host or args.port:
            raise UsageError("--unix says where the broker is: drop -h, -p and -L.")
        if tls_options:
            raise UsageError("--unix does not use TLS: drop the TLS options.")
        endpoint = Endpoint(Address("unix", "", 0, args.unix, None, None))
    elif args.url is not None:
        if args.host or args.port:
            raise UsageError("-L says where the broker is: drop -h and -p.")
        endpoint = parse_url(args.url)
        if tls_options and not endpoint.address.is_encrypted:
            raise UsageError(f"the TLS options need an mqtts:// or wss:// URL, not {shown(args.url)}")
    else:
        # 8883 is the port for MQTT over TLS; mosquitto's tools, too, take it as the wish for TLS.
        tls = tls_options or args.port == 8883
        scheme = "mqtts" if tls else "mqtt"
        host, port = args.host or "localhost", args.port or PORTS[scheme]
        endpoint = Endpoint(Address(scheme, host, port, "", None, None))
    if args.insecure and not endpoint.address.is_encrypted:
        raise UsageError("--insecure is about TLS: add --cafile, --tls-use-os-certs or an mqtts:// URL.")
    return endpoint


def credentials_of(args: argparse.Namespace, endpoint: Endpoint) -> dict[str, Any]:
    """Return the user name, password, TLS and own address, as the client takes them."""
    username = args.username if args.username is not None else endpoint.address.username
    password = args.pw if args.pw is not None else endpoint.address.password
    if password is not None and username is None:
        raise UsageError("a password needs a user name: add -u.")
    tls = tls_context(args) if endpoint.address.is_encrypted else None
    return {"username": username, "password": password, "tls": tls, "bind_address": args.bind_address}


def parse_url(url: str) -> Endpoint:
    """Read a -L URL. By hand, because a topic filter may hold the # and ? that other URLs reserve."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in PORTS:
        raise UsageError(f"-L {shown(url)}: a URL starts with {', '.join(f'{name}://' for name in PORTS)}")
    if scheme == "unix":
        return Endpoint(Address(scheme, "", 0, unquote(rest), None, None))
    port = PORTS[scheme]
    authority, slash, path = rest.partition("/")
    user_information, at, host_and_port = authority.rpartition("@")
    username, colon, password = user_information.partition(":")
    if host_and_port.startswith("["):
        host, _, port_text = host_and_port[1:].partition("]")
        port_text = port_text.removeprefix(":")
    else:
        host, _, port_text = host_and_port.partition(":")
    if not host:
        raise UsageError(f"-L {shown(url)}: the host is missing")
    if port_text:
        try:
            port = _port(port_text)
        except argparse.ArgumentTypeError as error:
            # With a slash in it, a password may look like a port.
            wrong = "a port is a number between 1 and 65535" if "@" in url else error
            raise UsageError(f"-L {shown(url)}: {wrong}") from None
    websockets = scheme in ("ws", "wss")
    address = Address(
        scheme,
        host,
        port,
        path=(slash + path if slash else "/mqtt") if websockets else "",
        username=unquote(username) if at else None,
        password=unquote(password) if colon else None,
    )
    return Endpoint(address, topic=unquote(path) if path and not websockets else None)


def tls_context(args: argparse.Namespace) -> ssl.SSLContext:
    """Trust what was named, or else what the system trusts; verify the certificate in any case."""
    try:
        if args.tls_use_os_certs or not (args.cafile or args.capath):
            context = ssl.create_default_context()
            if args.cafile or args.capath:
                context.load_verify_locations(args.cafile, args.capath)
        else:
            context = ssl.create_default_context(cafile=args.cafile, capath=args.capath)
    except OSError as error:
        where = args.cafile or args.capath
        raise CommandError(
            f"cannot load the certificate authorities from {where}: {reason_of(error)}"
        ) from None
    if args.cert:
        try:
            context.load_cert_chain(args.cert, args.key)
        except OSError as error:
            raise CommandError(f"cannot load {args.cert} with {args.key}: {reason_of(error)}") from None
    if args.insecure:
        context.check_hostname = False
    return context


def _port(text: str) -> int:
    if text.isdecimal() and 0 < int(text) < 65536:
        return int(text)
    raise argparse.ArgumentTypeError(f"a port is a number between 1 and 65535, not {text!r}")
