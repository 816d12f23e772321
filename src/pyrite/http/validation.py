"""Converts parameters and JSON bodies to typed structures, with errors that say what is expected."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from pyrite.ipc.problem import Problem

T = TypeVar("T", bound=Struct)

_PLACE = re.compile(r" - at `\$\.(\w+)")
_MISSING = re.compile(r"missing required field `(\w+)`")


def convert(found: Mapping[str, Any], kind: type[T], noun: str, strict: bool = True) -> T:
    """Return named values as a structure; raise Problem for invalid ones.

    `noun` is the word for a value in errors. Without `strict`, numbers may be given as text.
    """
    known = msgspec.structs.fields(kind)
    names = {one.encode_name for one in known}
    for name in found:
        if name not in names:
            expected = f"expected {', '.join(sorted(names))}" if names else "expected none"
            raise Problem(400, f"unknown {noun} {name!r}; {expected}")
    try:
        return msgspec.convert(found, kind, strict=strict)
    except msgspec.ValidationError as error:
        text = str(error)
        place = _PLACE.search(text) or _MISSING.search(text)
        if place is None:
            raise Problem(400, text) from None
        raise Problem(400, f"{place[1]}: expected {expected_of(schema_of(kind)[place[1]])}") from None


def parse_object(data: bytes) -> dict[str, Any]:
    """Return a JSON object; raise Problem for other values, and for duplicate keys."""
    try:
        found = json.loads(data, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise Problem(400, f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise Problem(400, "expected a JSON object")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise Problem(400, f"duplicate key {name!r}")
        found[name] = value
    return found


@cache
def schema_of(kind: type[Struct]) -> dict[str, Any]:
    """Return the JSON schema of each field of a structure."""
    schema = msgspec.json.schema(kind)
    properties: dict[str, Any] = schema["$defs"][kind.__name__]["properties"]
    return properties


def expected_of(schema: Mapping[str, Any]) -> str:
    """Describe the values that a JSON schema allows."""
    low, high = schema.get("minimum"), schema.get("maximum")
    bounds = ""
    if low is not None and high is not None:
        bounds = f" from {low} to {high}"
    elif low is not None:
        bounds = f" of at least {low}"
    match schema.get("type"):
        case "integer":
            return f"a whole number{bounds}"
        case "number":
            return f"a number{bounds}"
        case "boolean":
            return "true or false"
        case "array":
            items = "pairs of strings" if "prefixItems" in schema["items"] else "values"
            most = f"at most {schema['maxItems']} " if "maxItems" in schema else ""
            return f"a list of {most}{items}" + (", not empty" if schema.get("minItems") else "")
        case "string" if "contentEncoding" in schema:
            return "base64" + (
                f" of at most {schema['maxLength'] * 3 // 4} bytes" if "maxLength" in schema else ""
            )
        case "string":
            most = f" of at most {schema['maxLength']} characters" if "maxLength" in schema else ""
            return "a string" + most + (", not empty" if schema.get("minLength") else "")
    return "something else"
