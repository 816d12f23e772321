"""Makes Pyrite's dependencies importable, whichever Python runs a classic program.

Every program calls this before it imports anything else. It must work on any Python 3, without dependencies.
"""

import importlib.util
import os
import site
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
VENV = CHECKOUT / ".venv"
OLDEST = (3, 11)
"""The oldest Python that runs Pyrite."""
NEEDED = ("numpy", "prompt_toolkit", "pyarrow", "rich", "sortedcontainers", "uvloop", "xxhash")


def find_dependencies(module: str) -> None:
    """Make Pyrite's dependencies importable for a module, given its `__name__`.

    A program whose Python lacks them, or is too old, is restarted with the Python of `make run`. A process
    that imports is never restarted: it gets the packages that `make run` installed, if they fit its Python.
    """
    if module == "__main__":
        sys.excepthook = _report
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    too_old = sys.version_info < OLDEST
    if not missing and not too_old:
        return
    python = VENV / "bin" / "python"
    installed = VENV / "lib" / "python{}.{}".format(*sys.version_info[:2]) / "site-packages"
    if not python.exists() or Path(sys.prefix).resolve() == VENV.resolve():
        if (CHECKOUT / "Makefile").exists():
            problem = f"Pyrite is not set up: run `make run` once in {CHECKOUT}"
        elif too_old:
            problem = "Pyrite needs Python {}.{} or later".format(*OLDEST)
        else:
            problem = f"Pyrite needs the package {missing[0]}: install it with pip"
    elif module == "__main__":
        os.execv(str(python), [str(python), *sys.argv])  # noqa: S606
    elif installed.exists():
        _add_packages(str(installed))
        return
    else:
        problem = "Python {}.{} lacks Pyrite's packages: run {} instead".format(*sys.version_info[:2], python)
    if module == "__main__":
        sys.exit(problem)
    raise ImportError(problem)


def _add_packages(folder: str) -> None:
    """Make packages importable, before those of this Python, which may be other versions."""
    before = list(sys.path)
    site.addsitedir(folder)
    added = [path for path in sys.path if path not in before]
    first = [Path(path).name in ("site-packages", "dist-packages") for path in before] + [True]
    at = first.index(True)
    sys.path[:] = before[:at] + added + before[at:]


def _report(kind, error, trace):  # type: ignore[no-untyped-def]
    """Report an unhandled exception, except Ctrl-C during the imports, which just ends the program."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
