"""Pyrite: a message broker whose messages are born ready for Spark."""

import os

__version__ = "0.1.0"


def _use_sources() -> None:
    """Import the sources of this package, not the modules that were compiled from them."""
    import sys
    from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader

    folder = __path__[0]
    sources = FileFinder.path_hook((SourceFileLoader, SOURCE_SUFFIXES))

    def hook(path: str) -> object:
        if path != folder and not path.startswith(folder + os.sep):
            raise ImportError(path)
        return sources(path)

    sys.path_hooks.insert(0, hook)  # type: ignore[arg-type]
    sys.path_importer_cache.pop(folder, None)


if os.environ.get("PYRITE_PURE", "0") not in ("", "0"):
    _use_sources()
