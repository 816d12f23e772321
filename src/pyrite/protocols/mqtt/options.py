"""Settings of MQTT."""

from __future__ import annotations

from dataclasses import dataclass

from pyrite.broker.session import NEVER


@dataclass(slots=True)
class MqttOptions:
    """The [mqtt] table of pyrite.toml."""

    maximum_qos: int = 2
    """Highest quality of service accepted and granted."""
    retain_available: bool = True
    """Whether messages may be retained."""
    wildcard_subscriptions: bool = True
    """Whether filters may contain + and #."""
    shared_subscriptions: bool = True
    """Whether $share/group/filter may be subscribed to."""
    subscription_identifiers: bool = True
    """Whether subscriptions may carry identifiers."""
    topic_alias_maximum: int = 64
    """The most topic aliases that one client may use towards the broker."""
    use_topic_aliases: bool = True
    """Whether the broker uses topic aliases towards clients that allow them."""
    server_keep_alive: int = 0
    """The longest keep-alive, in seconds, that clients may have; 0 leaves it to them."""
    max_session_expiry: int = NEVER
    """The longest time, in seconds, that a session outlives its connection; 4294967295 for no bound."""
    response_information: str = ""
    """Sent to clients that ask for response information; usually the prefix of response topics."""
    server_reference: str = ""
    """Another server, named to clients that are refused because this one is full or shutting down."""
    check_payload_format: bool = False
    """Whether payloads that claim to be UTF-8 are checked, and refused if they are not."""
    authenticator: str = ""
    """The plug-in that authenticates and authorizes clients: package.module:factory."""
    sys_interval: float = 1.0
    """Seconds between updates of $SYS; 0 for no $SYS at all."""
