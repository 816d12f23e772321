"""The options that `pyrite pub` and `pyrite sub` share: which broker, who we are, how, and with what will."""

from __future__ import annotations

import argparse
import os
import secrets
import ssl
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

from paho.mqtt.enums import MQTTProtocolVersion

from pyrite.cli.properties import PropertyAction

SESSION_NEVER_EXPIRES = 0xFFFF_FFFF

_PROTOCOLS = {
    "mqttv31": MQTTProtocolVersion.MQTTv31,
    "mqttv311": MQTTProtocolVersion.MQTTv311,
    "mqttv5": MQTTProtocolVersion.MQTTv5,
}
# scheme: (transport, TLS, default port)
_SCHEMES: dict[str, tuple[Literal["tcp", "websockets"], bool, int]] = {
    "mqtt": ("tcp", False, 1883),
    "mqtts": ("tcp", True, 8883),
    "ws": ("websockets", False, 80),
    "wss": ("websockets", True, 443),
}


class CommandError(Exception):
    """What went wrong: a sentence for the person at the keyboard, and an exit code for scripts."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class UsageError(CommandError):
    """The options do not go together; 2 is the exit code argparse uses as well."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=2)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the broker is, and how to speak to it."""

    transport: Literal["tcp", "websockets", "unix"]
    host: str
    port: int
    tls: bool = False
    path: str = ""
    username: str | None = None
    password: str | None = None
    topic: str | None = None

    def __str__(self) -> str:
        if self.transport == "unix":
            return self.host
        host = f"[{self.host}]" if ":" in self.host else self.host
        if self.transport == "websockets":
            return f"{'wss' if self.tls else 'ws'}://{host}:{self.port}{self.path}"
        return f"{host}:{self.port}"


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Add the options both commands share, with mosquitto's letters and names."""
    parser.add_argument("--help", action="help", help="show this help and exit")

    broker = parser.add_argument_group("broker")
    broker.add_argument("-h", "--host", help="the broker's host (default: localhost)")
    broker.add_argument("-p", "--port", type=_port, help="its port (default: 1883, or 8883 with TLS)")
    broker.add_argument("--unix", metavar="PATH", help="connect through this Unix domain socket")
    broker.add_argument(
        "-L",
        "--url",
        help="all in one: mqtt[s]://[user[:password]@]host[:port][/topic] or ws[s]://host[:port]/path",
    )
    broker.add_argument(
        "-A", dest="bind_address", default="", metavar="ADDRESS", help="connect from this address"
    )
    broker.add_argument("-u", "--username", help="user name")
    broker.add_argument("-P", "--pw", metavar="PASSWORD", help="password (one starting with -: -P-secret)")

    session = parser.add_argument_group("session")
    session.add_argument("-i", "--id", metavar="ID", help="client identifier (default: a random one)")
    session.add_argument(
        "-I", "--id-prefix", metavar="PREFIX", help="client identifier: this and the process id"
    )
    session.add_argument(
        "-V",
        "--protocol-version",
        type=_protocol,
        default=MQTTProtocolVersion.MQTTv5,
        metavar="VERSION",
        help="mqttv5 (default), mqttv311 or mqttv31",
    )
    session.add_argument(
        "-k", "--keepalive", type=_keepalive, default=60, metavar="SECONDS", help="default: 60"
    )
    session.add_argument(
        "-c",
        "--disable-clean-session",
        action="store_true",
        help="continue the session of this client identifier, and leave it with the broker on exit; needs -i",
    )
    session.add_argument(
        "-x",
        "--session-expiry-interval",
        type=_session_expiry,
        metavar="SECONDS",
        help="how long the session outlives the connection; -1: for ever (default: 0, with -c for ever)",
    )
    session.add_argument(
        "-D",
        "--property",
        dest="properties",
        action=PropertyAction,
        nargs="+",
        default=[],
        metavar="WORD",
        help="an MQTT 5 property: COMMAND NAME VALUE, or COMMAND user-property KEY VALUE; may be repeated",
    )

    will = parser.add_argument_group("will: what the broker publishes should this client vanish")
    will.add_argument("--will-topic", metavar="TOPIC")
    will.add_argument("--will-payload", metavar="MESSAGE")
    will.add_argument("--will-qos", type=int, choices=(0, 1, 2), default=0)
    will.add_argument("--will-retain", action="store_true")

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


def check_connection_options(args: argparse.Namespace) -> None:
    """Refuse combinations that cannot be meant."""
    if args.disable_clean_session and not args.id and not args.id_prefix:
        raise UsageError("-c continues the session of a client identifier: name it with -i.")
    if args.id and args.id_prefix:
        raise UsageError("-i and -I both say what the client identifier is: drop one.")
    if args.protocol_version != MQTTProtocolVersion.MQTTv5:
        if args.properties:
            raise UsageError("-D needs MQTT 5: drop it, or use -V mqttv5.")
        if args.session_expiry_interval is not None:
            raise UsageError("-x needs MQTT 5: drop it, or use -V mqttv5.")
    if args.will_topic is None:
        if args.will_payload is not None or args.will_retain or args.will_qos:
            raise UsageError("--will-payload, --will-qos and --will-retain need --will-topic.")
        if any(each.command == "will" for each in args.properties):
            raise UsageError("-D will needs --will-topic.")
    elif not args.will_topic or "+" in args.will_topic or "#" in args.will_topic:
        raise UsageError(
            f"--will-topic {args.will_topic!r}: a topic to publish to has no wildcards and is not empty."
        )
    expiries = [each for each in args.properties if each.name == "session-expiry-interval"]
    if args.session_expiry_interval is not None and any(each.command == "connect" for each in expiries):
        raise UsageError("-x and -D connect session-expiry-interval say the same: drop one.")


def client_identifier(args: argparse.Namespace, program: str) -> str:
    """Return the identifier asked for, or one that tells in the broker's log who this is."""
    if args.id is not None:
        return str(args.id)
    if args.id_prefix:
        return f"{args.id_prefix}{os.getpid()}"
    # At most 23 characters: all that an MQTT 3.1 broker must accept.
    return f"{program.replace(' ', '-')}-{secrets.token_hex(4)}"


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
        endpoint = Endpoint("unix", args.unix, 1883)
    elif args.url is not None:
        if args.host or args.port:
            raise UsageError("-L says where the broker is: drop -h and -p.")
        endpoint = parse_url(args.url)
        if tls_options and not endpoint.tls:
            raise UsageError(f"the TLS options need an mqtts:// or wss:// URL, not {args.url}")
    else:
        # 8883 is the port for MQTT over TLS; mosquitto's tools, too, take it as the wish for TLS.
        tls = tls_options or args.port == 8883
        endpoint = Endpoint("tcp", args.host or "localhost", args.port or (8883 if tls else 1883), tls)
    if args.insecure and not endpoint.tls:
        raise UsageError("--insecure is about TLS: add --cafile, --tls-use-os-certs or an mqtts:// URL.")
    return endpoint


def parse_url(url: str) -> Endpoint:
    """Read a -L URL. By hand, because a topic filter may hold the # and ? that other URLs reserve."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        raise UsageError(f"-L {url}: a URL starts with {', '.join(f'{name}://' for name in _SCHEMES)}")
    transport, tls, port = _SCHEMES[scheme]
    authority, slash, path = rest.partition("/")
    user_information, at, host_and_port = authority.rpartition("@")
    username, colon, password = user_information.partition(":")
    if host_and_port.startswith("["):
        host, _, port_text = host_and_port[1:].partition("]")
        port_text = port_text.removeprefix(":")
    else:
        host, _, port_text = host_and_port.partition(":")
    if not host:
        raise UsageError(f"-L {url}: the host is missing")
    if port_text:
        try:
            port = _port(port_text)
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"-L {url}: {error}") from None
    websockets = transport == "websockets"
    return Endpoint(
        transport,
        host,
        port,
        tls,
        path=slash + path if slash else "/mqtt",
        username=unquote(username) if at else None,
        password=unquote(password) if colon else None,
        topic=unquote(path) if path and not websockets else None,
    )


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


def reason_of(error: OSError) -> str:
    """Say why, without the number and the punctuation that str(error) adds."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return error.strerror or str(error) or type(error).__name__


def _port(text: str) -> int:
    if text.isdecimal() and 0 < int(text) < 65536:
        return int(text)
    raise argparse.ArgumentTypeError(f"a port is a number between 1 and 65535, not {text!r}")


def _keepalive(text: str) -> int:
    if text.isdecimal() and int(text) < 65536:
        return int(text)
    raise argparse.ArgumentTypeError(f"the keep alive is between 0 and 65535 seconds, not {text!r}")


def _protocol(text: str) -> MQTTProtocolVersion:
    name = text if text.startswith("mqttv") else f"mqttv{text}"
    if name in _PROTOCOLS:
        return _PROTOCOLS[name]
    raise argparse.ArgumentTypeError(f"choose from {', '.join(_PROTOCOLS)}, not {text!r}")


def _session_expiry(text: str) -> int:
    if text in ("-1", "∞"):
        return SESSION_NEVER_EXPIRES
    if text.isdecimal() and int(text) <= SESSION_NEVER_EXPIRES:
        return int(text)
    raise argparse.ArgumentTypeError(f"the session expiry is between 0 and 4294967295, or -1, not {text!r}")
