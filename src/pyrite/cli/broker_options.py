"""Options that say where the broker is and how to reach it: host, URL, credentials, TLS."""

from __future__ import annotations

import argparse
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from pyrite.cli.errors import CommandError, UsageError, reason_of
from pyrite.client import Address
from pyrite.client.address import PORTS, shown


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker's address, and the topic if its URL ends in one."""

    address: Address
    topic: str | None = None

    def __str__(self) -> str:
        if self.address.scheme == "unix":
            return self.address.path
        text = str(self.address)
        return text if self.address.scheme in ("ws", "wss") else text.partition("://")[2]


def add_broker_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for address and credentials, with mosquitto's letters and names."""
    parser.add_argument("--help", action="help", help="show this help and exit")
    broker = parser.add_argument_group("broker")
    broker.add_argument("-h", "--host", help="the broker's host (default: localhost)")
    broker.add_argument("-p", "--port", type=_port, help="its port (default: 1883, or 8883 with TLS)")
    broker.add_argument("--unix", metavar="PATH", help="connect through this Unix domain socket")
    broker.add_argument(
        "-L",
        "--url",
        help="the address as a URL: mqtt[s]://[user[:password]@]host[:port][/topic], "
        "ws[s]://host[:port]/path or unix:///path",
    )
    broker.add_argument("-u", "--username", help="user name")
    broker.add_argument(
        "-P", "--pw", "--password", metavar="PASSWORD", help="password (if it starts with -, write -P-secret)"
    )


def add_tls_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for TLS and diagnostics."""
    tls = parser.add_argument_group("TLS")
    tls.add_argument("--cafile", metavar="FILE", help="trust the certificate authorities in this file")
    tls.add_argument(
        "--capath", metavar="DIRECTORY", help="trust the certificate authorities in this directory"
    )
    tls.add_argument(
        "--tls-use-os-certs", action="store_true", help="trust the operating system's certificate authorities"
    )
    tls.add_argument("--cert", metavar="FILE", help="this client's certificate")
    tls.add_argument("--key", metavar="FILE", help="this client's private key")
    tls.add_argument(
        "--insecure", action="store_true", help="accept a certificate issued for another host name"
    )

    output = parser.add_argument_group("diagnostics")
    output.add_argument("-d", "--debug", action="store_true", help="log packets to stderr")
    output.add_argument(
        "--quiet", action="store_true", help="print no error messages, only set the exit code"
    )


def endpoint_of(args: argparse.Namespace) -> BrokerAddress:
    """Return the broker's address from --unix, -L, or -h and -p."""
    tls_options = bool(args.cafile or args.capath or args.tls_use_os_certs or args.cert)
    if bool(args.key) != bool(args.cert):
        raise UsageError("--cert and --key must be given together.")
    if args.unix is not None:
        if args.url or args.host or args.port:
            raise UsageError("--unix cannot be combined with -h, -p or -L.")
        if tls_options:
            raise UsageError("--unix cannot be combined with TLS options.")
        endpoint = BrokerAddress(Address("unix", "", 0, args.unix, None, None))
    elif args.url is not None:
        if args.host or args.port:
            raise UsageError("-L cannot be combined with -h or -p.")
        endpoint = parse_url(args.url)
        if tls_options and not endpoint.address.is_encrypted:
            raise UsageError(f"TLS options need an mqtts:// or wss:// URL, not {shown(args.url)}")
    else:
        # Port 8883 is MQTT over TLS; mosquitto's tools switch TLS on for it too.
        tls = tls_options or args.port == 8883
        scheme = "mqtts" if tls else "mqtt"
        host, port = args.host or "localhost", args.port or PORTS[scheme]
        endpoint = BrokerAddress(Address(scheme, host, port, "", None, None))
    if args.insecure and not endpoint.address.is_encrypted:
        raise UsageError("--insecure needs TLS: add --cafile, --tls-use-os-certs or an mqtts:// URL.")
    return endpoint


def credentials_of(args: argparse.Namespace, endpoint: BrokerAddress) -> dict[str, Any]:
    """Return user name, password and TLS context as keyword arguments of the client."""
    username = args.username if args.username is not None else endpoint.address.username
    password = args.pw if args.pw is not None else endpoint.address.password
    if password is not None and username is None:
        raise UsageError("a password needs a user name (-u).")
    tls = tls_context(args) if endpoint.address.is_encrypted else None
    return {"username": username, "password": password, "tls": tls}


def parse_url(url: str) -> BrokerAddress:
    """Parse a -L URL. Not with urlsplit, because a topic filter may contain # and ?."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in PORTS:
        raise UsageError(
            f"-L {shown(url)}: a URL must start with {', '.join(f'{name}://' for name in PORTS)}"
        )
    if scheme == "unix":
        return BrokerAddress(Address(scheme, "", 0, unquote(rest), None, None))
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
        raise UsageError(f"-L {shown(url)}: no host given")
    if port_text:
        try:
            port = _port(port_text)
        except argparse.ArgumentTypeError as error:
            # A password that contains a slash would be quoted here as the port.
            wrong = "a port must be a number from 1 to 65535" if "@" in url else error
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
    return BrokerAddress(address, topic=unquote(path) if path and not websockets else None)


def tls_context(args: argparse.Namespace) -> ssl.SSLContext:
    """Return a context that trusts the given authorities, or the system's, and always verifies."""
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
    raise argparse.ArgumentTypeError(f"a port must be a number from 1 to 65535, not {text!r}")
