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
    """Whether clients may subscribe to $share/GROUP/FILTER."""
    subscription_identifiers: bool = True
    """Whether subscriptions may carry identifiers."""
    topic_alias_maximum: int = 64
    """Maximum number of topic aliases that a client may use when publishing."""
    use_topic_aliases: bool = True
    """Whether the broker uses topic aliases when sending to clients that allow them."""
    server_keep_alive: int = 0
    """Maximum keep-alive of clients in seconds; 0 for no maximum."""
    max_session_expiry: int = NEVER
    """Maximum time in seconds for which a session outlives its connection; 4294967295 for no maximum."""
    response_information: str = ""
    """Response information for clients that request it; usually the prefix of response topics."""
    server_reference: str = ""
    """Server to which clients are referred when this server is full or shutting down."""
    check_payload_format: bool = False
    """Whether to refuse payloads that are declared as UTF-8 but are not valid UTF-8."""
    authenticator: str = ""
    """Plug-in that authenticates and authorizes clients: package.module:factory."""
    sys_interval: float = 1.0
    """Seconds between updates of $SYS; 0 to publish no $SYS topics."""
