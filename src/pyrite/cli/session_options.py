"""Options of `pyrite pub` and `pyrite sub` for client identifier, MQTT version, session and will."""

from __future__ import annotations

import argparse
import os
import secrets
from typing import Any

from pyrite.cli.errors import UsageError
from pyrite.cli.properties import PropertyAction, properties_of
from pyrite.client import Will
from pyrite.protocols.mqtt.packets import V5, V31, V311

SESSION_NEVER_EXPIRES = 0xFFFF_FFFF

_PROTOCOLS = {"mqttv31": V31, "mqttv311": V311, "mqttv5": V5}


def add_session_options(parser: argparse.ArgumentParser) -> None:
    """Add the session options, with mosquitto's letters and names."""
    session = parser.add_argument_group("session")
    session.add_argument("-i", "--id", metavar="ID", help="client identifier (default: a random one)")
    session.add_argument(
        "-V",
        "--protocol-version",
        type=_protocol,
        default=V5,
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
        help="continue the session of this client identifier and keep it after exit; needs -i",
    )
    session.add_argument(
        "-x",
        "--session-expiry-interval",
        type=_session_expiry,
        metavar="SECONDS",
        help="how long the session is kept after disconnect; -1: forever (default: 0, with -c forever)",
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

    will = parser.add_argument_group("will: published by the broker if this client disconnects unexpectedly")
    will.add_argument("--will-topic", metavar="TOPIC")
    will.add_argument("--will-payload", metavar="MESSAGE")
    will.add_argument("--will-qos", type=int, choices=(0, 1, 2), default=0)
    will.add_argument("--will-retain", action="store_true")


def check_session_options(args: argparse.Namespace) -> None:
    """Raise UsageError for options that exclude each other."""
    if args.disable_clean_session and not args.id:
        raise UsageError("-c continues a session: name its client identifier with -i.")
    if args.protocol_version != V5:
        if args.properties:
            raise UsageError("-D needs MQTT 5: remove it, or use -V mqttv5.")
        if args.session_expiry_interval is not None:
            raise UsageError("-x needs MQTT 5: remove it, or use -V mqttv5.")
    if args.will_topic is None:
        if args.will_payload is not None or args.will_retain or args.will_qos:
            raise UsageError("--will-payload, --will-qos and --will-retain need --will-topic.")
        if any(each.command == "will" for each in args.properties):
            raise UsageError("-D will needs --will-topic.")
    elif not args.will_topic or "+" in args.will_topic or "#" in args.will_topic:
        raise UsageError(
            f"--will-topic {args.will_topic!r}: a topic name must not be empty or contain wildcards."
        )
    expiries = [each for each in args.properties if each.name == "session-expiry-interval"]
    if args.session_expiry_interval is not None and any(each.command == "connect" for each in expiries):
        raise UsageError("-x and -D connect session-expiry-interval set the same property: use one.")


def client_identifier(args: argparse.Namespace, program: str) -> str:
    """Return the identifier of -i, or a random one that names the program in the broker's log."""
    if args.id is not None:
        return str(args.id)
    # An MQTT 3.1 broker need not accept more than 23 characters.
    return f"{program.replace(' ', '-')}-{secrets.token_hex(4)}"


def session_of(args: argparse.Namespace, program: str) -> dict[str, Any]:
    """Return identifier, version, session, will and properties as keyword arguments of the client."""
    check_session_options(args)
    connect = properties_of("connect", args.properties)
    expiry = connect.pop("session_expiry", args.session_expiry_interval)
    if expiry is None:
        expiry = SESSION_NEVER_EXPIRES if args.disable_clean_session else 0
    will = None
    if args.will_topic is not None:
        payload, properties = os.fsencode(args.will_payload or ""), properties_of("will", args.properties)
        will = Will(args.will_topic, payload, args.will_qos, args.will_retain, properties)
    return {
        "client_id": client_identifier(args, program),
        "version": args.protocol_version,
        "keep_alive": args.keepalive,
        "clean_start": not args.disable_clean_session,
        "session_expiry": expiry,
        "will": will,
        "properties": connect,
    }


def _keepalive(text: str) -> int:
    if text.isdecimal() and int(text) < 65536:
        return int(text)
    raise argparse.ArgumentTypeError(f"the keep alive must be from 0 to 65535 seconds, not {text!r}")


def _protocol(text: str) -> int:
    name = text if text.startswith("mqttv") else f"mqttv{text}"
    if name in _PROTOCOLS:
        return _PROTOCOLS[name]
    raise argparse.ArgumentTypeError(f"expected {', '.join(_PROTOCOLS)}, not {text!r}")


def _session_expiry(text: str) -> int:
    if text in ("-1", "∞"):
        return SESSION_NEVER_EXPIRES
    if text.isdecimal() and int(text) <= SESSION_NEVER_EXPIRES:
        return int(text)
    raise argparse.ArgumentTypeError(
        f"the session expiry must be from 0 to 4294967295 seconds, or -1, not {text!r}"
    )
