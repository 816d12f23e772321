"""All exceptions of the package have one base class."""

import ast
import builtins
from pathlib import Path

import pyrite

PACKAGE = Path(pyrite.__file__).parent


def bases_of_classes() -> dict[str, set[str]]:
    """Return the names of the base classes of each class of the package, without the classic systems."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        if "classic" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                names = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                found.setdefault(node.name, set()).update(names)
    return found


def is_builtin_exception(name: str) -> bool:
    kind = getattr(builtins, name, None)
    return isinstance(kind, type) and issubclass(kind, BaseException)


def test_every_exception_is_a_pyrite_error() -> None:
    classes = bases_of_classes()
    direct = {name for name, bases in classes.items() if any(map(is_builtin_exception, bases))}
    strays = {name for name in direct if name != "PyriteError" and "PyriteError" not in classes[name]}
    assert not strays, "derive these exceptions from pyrite.errors.PyriteError"
