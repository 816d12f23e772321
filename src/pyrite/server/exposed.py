"""Files with secrets that others on the machine could read."""

from __future__ import annotations

import logging
from pathlib import Path

from pyrite.server.config import Config
from pyrite.storage.files import OTHERS

logger = logging.getLogger(__name__)


def warn_of_exposed_files(config: Config) -> None:
    """Log a warning for each file with keys or passwords that everyone on the machine can get at."""
    secrets = {
        "tls.key" if config.tls.key else "tls.certificate": config.tls.key or config.tls.certificate,
        "access.users": config.access.users,
        "access.jwt_keys": config.access.jwt_keys,
    }
    for key, name in secrets.items():
        try:
            exposed = bool(name) and Path(name).stat().st_mode & OTHERS
        except OSError:
            continue  # whoever reads it says what is wrong
        if exposed:
            logger.warning("%s = %r: everyone on this machine can read it; chmod o= closes it", key, name)
