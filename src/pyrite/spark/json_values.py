"""Convert JSON values to column values, by the rules of Spark's `from_json`.

A text column takes any value; one that is not a string is written as JSON. Other columns take only values of
their own kind.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from pyrite.errors import PyriteError
from pyrite.spark.casting import cast_all

Convert = Callable[[Any], Any]


class Misfit(PyriteError):
    """A value that does not fit the type of its column."""


class Number(str):
    """A number as written in the JSON text; its column decides how to read it."""

    __slots__ = ()


def parse(text: str) -> Any:
    """Parse JSON strictly; raise ValueError or RecursionError otherwise."""
    return json.loads(text, parse_int=Number, parse_float=Number, parse_constant=_refuse)


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def as_read(kind: pa.DataType) -> pa.DataType:
    """Return the type to read before the cast to `kind`: text for types that JSON lacks."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_decimal(kind):
        return pa.string()
    return kind


def converter(kind: pa.DataType) -> Convert:
    """Return a function from a JSON value other than null to a value of `as_read(kind)`; it raises Misfit."""
    if pa.types.is_string(kind):
        return _text
    if pa.types.is_boolean(kind):
        return _boolean
    if pa.types.is_integer(kind):
        most = 2 ** (kind.bit_width - 1) - 1
        return lambda value: _whole(value, most)
    if pa.types.is_floating(kind):
        return _float
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _string
    if pa.types.is_decimal(kind):
        return _number
    if pa.types.is_list(kind):
        return _list(kind.value_type)
    if pa.types.is_struct(kind):
        return _struct(kind)
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return _map(kind.item_type)
    raise TypeError(f"a column of type {kind} cannot be read from JSON")


def _text(value: Any) -> str:
    return value if type(value) is str else shown(value)


def shown(value: Any) -> str:
    """Return a value as JSON text, with numbers as they were written."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, list):
        return f"[{','.join(map(shown, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{json.dumps(key)}:{shown(each)}' for key, each in value.items())}}}"
    return json.dumps(value)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise Misfit


def _whole(value: Any, most: int) -> int:
    try:
        number = int(_number(value))
    except ValueError:
        raise Misfit from None
    if not -most - 1 <= number <= most:
        raise Misfit
    return number


def _float(value: Any) -> float:
    return float(_number(value))


def _string(value: Any) -> str:
    if type(value) is str:
        return value
    raise Misfit


def _number(value: Any) -> str:
    if isinstance(value, Number):
        return str(value)
    raise Misfit


def _inner(kind: pa.DataType) -> Convert:
    """Return a function from a nested JSON value, or null, to a value of `kind`."""
    convert = converter(kind)
    if as_read(kind) == kind:
        return lambda value: None if value is None else convert(value)

    def cast(value: Any) -> Any:
        if value is None:
            return None
        text = convert(value)
        try:
            return cast_all(pa.array([text], pa.string()), kind)[0].as_py()
        except (pa.ArrowInvalid, UnicodeEncodeError):
            raise Misfit from None

    return cast


def _list(kind: pa.DataType) -> Convert:
    convert = _inner(kind)

    def convert_list(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise Misfit
        return [convert(each) for each in value]

    return convert_list


def _struct(kind: pa.StructType) -> Convert:
    converters = {field.name: _inner(field.type) for field in kind}

    def convert_struct(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Misfit
        return {name: convert(value.get(name)) for name, convert in converters.items()}

    return convert_struct


def _map(kind: pa.DataType) -> Convert:
    convert = _inner(kind)

    def convert_map(value: Any) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            raise Misfit
        return [(key, convert(each)) for key, each in value.items()]

    return convert_map
