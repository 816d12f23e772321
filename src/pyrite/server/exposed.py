"""Warnings about secret files that other users of the machine can read."""

from __future__ import annotations

import logging
from pathlib import Path

from pyrite.server.config import Config
from pyrite.storage.files import OTHERS

logger = logging.getLogger(__name__)


def warn_of_exposed_files(config: Config) -> None:
    """Log a warning for each file with keys or passwords that everyone on the machine can read."""
    secrets = {
        "tls.key" if config.tls.key else "tls.certificate": config.tls.key or config.tls.certificate,
        "access.users": config.access.users,
        "access.jwt_keys": config.access.jwt_keys,
    }
    for key, name in secrets.items():
        try:
            exposed = bool(name) and Path(name).stat().st_mode & OTHERS
        except OSError:
            continue  # reported when the file is read
        if exposed:
            logger.warning(
                "%s = %r: everyone on this machine can read the file; protect it with chmod o=", key, name
            )
