"""Loads the access plug-in or the access list of the configuration."""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING

from pyrite.access.options import AccessError, AccessOptions
from pyrite.broker.access import Access
from pyrite.broker.core import Broker
from pyrite.server.config import Config, ConfigError

if TYPE_CHECKING:
    from pyrite.access.loading import AccessList

logger = logging.getLogger(__name__)


def load_access(config: Config) -> Access:
    """Return the configured access plug-in, or a guard of the access list."""
    name = config.mqtt.authenticator
    if not name:
        return _guard(config.access)
    where = f"{config.source}: mqtt.authenticator = {name!r}"
    module, colon, factory = name.partition(":")
    expected = "expected package.module:factory, where factory() returns a pyrite.broker.access.Access"
    try:
        access = getattr(importlib.import_module(module), factory)() if colon else None
    except (Exception, SystemExit) as error:  # a plug-in may raise anything
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"{where}: {text}; {expected}") from error
    if not isinstance(access, Access):
        raise ConfigError(f"{where}: {expected}")
    return access


def _guard(options: AccessOptions) -> Access:
    """Return the guard of the access list; without an access list, everything is allowed."""
    if not options.in_use:
        return Access()
    from pyrite.access.guard import Guard  # argon2 is slow to import

    return Guard(*read_access_list(options))


def read_access_list(options: AccessOptions) -> AccessList:
    """Read users, keys and rules; raise ConfigError if one is invalid."""
    from pyrite.access.loading import read_list

    try:
        return read_list(options)
    except AccessError as error:
        raise ConfigError(str(error)) from None


def replace_access(broker: Broker, config: Config, found: AccessList | None) -> None:
    """Use another access list."""
    from pyrite.access.guard import Guard

    before = broker.access
    if isinstance(before, Guard):
        if found is not None:
            before.replace(*found)
        else:
            logger.error(
                "the access list was removed from the configuration; it stays in force until a restart"
            )
    elif found is not None and not config.mqtt.authenticator:
        broker.access = Guard(*found)
