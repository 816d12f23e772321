"""Decode payloads into columns: JSON objects, CSV lines or plain text. Every row is kept.

Arrow decodes whole batches, but rejects a batch for one bad row. A rejected batch is split until the bad
rows stand alone; those are decoded value by value. A value that does not fit becomes null, and its row is
marked as bad.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from pyrite.spark.casting import SPLIT_PIECES, Mask, cast, cast_all
from pyrite.spark.json_values import Misfit, as_read, converter, parse
from pyrite.spark.options import OptionError

Decoded = tuple[dict[str, pa.Array], pa.Array]
"""Columns by name, and a mask of the bad rows."""
Decoder = Callable[[pa.Array], Decoded]

MAX_ONE_BY_ONE = 16
"""Largest batch of JSON objects that is decoded value by value without trying Arrow."""
_LINE = r"^[ \t]*\{[^\n\r]*\}[ \t]*$"


def readable(payloads: pa.Array) -> pa.Array:
    """Return bytes as text, with U+FFFD for invalid UTF-8."""
    return pa.array([payload.decode(errors="replace") for payload in payloads.to_pylist()], pa.string())


def _check_castable(fields: Sequence[pa.Field], payload_format: str) -> None:
    for field in fields:
        try:
            cast_all(pa.array([], pa.string()), field.type)
        except pa.ArrowNotImplementedError:
            wrong = f"a column of type {field.type} cannot be read from {payload_format}"
            raise OptionError(f"option payloadFormat: {wrong}") from None


def _none_bad(payloads: pa.Array) -> pa.Array:
    return pa.array(np.zeros(len(payloads), np.bool_))


def _any_payload(payloads: pa.Array) -> Decoded:
    """Decode nothing: without columns from the payload, every payload fits."""
    return {}, _none_bad(payloads)


def text_decoder(fields: Sequence[pa.Field]) -> Decoder:
    """Return a decoder into one column of whole payloads."""
    _check_castable(fields, "text")
    if not fields:
        return _any_payload

    def decode(payloads: pa.Array) -> Decoded:
        (field,) = fields
        if pa.types.is_binary(field.type):
            return {field.name: payloads}, _none_bad(payloads)
        texts, no_text = cast(payloads, pa.string())
        values, bad = cast(texts, field.type)
        return {field.name: values}, pa.array(no_text | bad)

    return decode


def csv_decoder(fields: Sequence[pa.Field]) -> Decoder:
    """Return a decoder of payloads that are each one line of comma-separated values."""
    _check_castable(fields, "csv")
    if not fields:
        return _any_payload

    def decode(payloads: pa.Array) -> Decoded:
        texts, bad = cast(payloads, pa.string())
        rows = _split(pc.utf8_rtrim(texts, "\r\n"))
        wrong = pc.fill_null(pc.not_equal(rows.value_lengths(), len(fields)), True)
        bad |= wrong.to_numpy(zero_copy_only=False)
        nothing: list[str | None] = [None] * len(fields)
        rows = pc.if_else(wrong, pa.scalar(nothing, rows.type), rows)
        flat = rows.flatten()
        columns = {}
        for number, field in enumerate(fields):
            column = flat.take(pa.array(np.arange(number, len(flat), len(fields))))
            column = pc.if_else(pc.equal(column, ""), None, column)
            columns[field.name], misfits = cast(column, field.type)
            bad |= misfits
        return columns, pa.array(bad)

    return decode


def _split(lines: pa.Array) -> pa.Array:
    """Split lines at commas; lines with quotes go through Python's csv module."""
    rows = pc.split_pattern(lines, ",")
    quoted = pc.fill_null(pc.match_substring(lines, '"'), False)
    if not quoted.true_count:
        return rows
    found = [_split_quoted(line) for line in lines.filter(quoted).to_pylist()]
    both = pa.concat_arrays([rows, pa.array(found, rows.type)])
    at = np.arange(len(rows))
    at[quoted.to_numpy(zero_copy_only=False)] = len(rows) + np.arange(len(found))
    return both.take(pa.array(at))


def _split_quoted(line: str) -> list[str] | None:
    limit = csv.field_size_limit(len(line) + 1)
    try:
        rows = list(csv.reader([line], strict=True))
    except csv.Error:
        return None
    finally:
        csv.field_size_limit(limit)
    return rows[0] if len(rows) == 1 else None


def json_decoder(fields: Sequence[pa.Field]) -> Decoder:
    """Return a decoder of payloads that are each a JSON object."""
    try:
        return _JsonDecoder(fields)
    except TypeError as wrong:
        raise OptionError(f"option payloadFormat: {wrong}") from None


class _JsonDecoder:
    """Decode JSON objects: in Arrow if all fields have simple types and no row is bad, else in Python."""

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self._fields = list(fields)
        self._converters = [converter(field.type) for field in fields]
        self._read = [as_read(field.type) for field in fields]
        self._simple = bool(fields) and all(
            not pa.types.is_decimal(field.type) and not pa.types.is_nested(field.type) for field in fields
        )

    def __call__(self, payloads: pa.Array) -> Decoded:
        texts, bad = cast(payloads, pa.string())
        read, misfits = self._decode(texts)
        bad |= misfits
        columns = {}
        for field, column in zip(self._fields, read, strict=True):
            columns[field.name], misfits = cast(column, field.type)
            bad |= misfits
        return columns, pa.array(bad)

    def _decode(self, texts: pa.Array) -> tuple[list[pa.Array], Mask]:
        if len(texts) <= MAX_ONE_BY_ONE or not self._simple:
            return self._one_by_one(texts)
        columns = self._at_once(texts)
        if columns is not None:
            return columns, np.zeros(len(texts), np.bool_)
        step = -(-len(texts) // SPLIT_PIECES)
        pieces = [self._decode(texts.slice(at, step)) for at in range(0, len(texts), step)]
        columns = [pa.concat_arrays(column) for column in zip(*(good for good, _ in pieces), strict=True)]
        return columns, np.concatenate([bad for _, bad in pieces])

    def _at_once(self, texts: pa.Array) -> list[pa.Array] | None:
        """Decode all payloads in Arrow, as the lines of one file; None if Arrow rejects them.

        Each line begins with { and ends with }, so no object spans two lines. If there are as many rows as
        lines, each line is exactly one object.
        """
        if texts.null_count or not pc.all(pc.match_substring_regex(texts, _LINE)).as_py():
            return None
        whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
        lines = pc.binary_join(whole, "\n")[0].as_buffer()
        names = [field.name for field in self._fields]
        parsing = pyarrow.json.ParseOptions(
            explicit_schema=pa.schema(zip(names, self._read, strict=True)), unexpected_field_behavior="ignore"
        )
        reading = pyarrow.json.ReadOptions(use_threads=False, block_size=len(lines) + 1)
        try:
            table = pyarrow.json.read_json(pa.BufferReader(lines), reading, parsing)
        except pa.ArrowInvalid:
            return None
        if table.num_rows != len(texts):
            return None
        return [table.column(name).combine_chunks() for name in names]

    def _one_by_one(self, texts: pa.Array) -> tuple[list[pa.Array], Mask]:
        rows = [self._row(text or "") for text in texts.to_pylist()]
        bad = np.array([misfit for _, misfit in rows], np.bool_)
        read = []
        for number, kind in enumerate(self._read):
            column, misfits = _array([values[number] for values, _ in rows], kind)
            read.append(column)
            bad |= misfits
        return read, bad

    def _row(self, text: str) -> tuple[list[Any], bool]:
        """Return a value for each column, and whether the row is bad."""
        try:
            found = parse(text)
        except ValueError:
            found = None
        except RecursionError:  # Arrow accepts any depth in fields that are not read
            columns = self._at_once(pa.array([text], pa.string())) if self._simple else None
            if columns is not None:
                return [column[0].as_py() for column in columns], False
            found = None
        bad = not isinstance(found, dict)
        given: dict[str, Any] = {} if bad else found
        values = []
        for field, convert in zip(self._fields, self._converters, strict=True):
            value = given.get(field.name)
            try:
                values.append(None if value is None else convert(value))
            except (Misfit, RecursionError):
                values.append(None)
                bad = True
        return values, bad


def _array(values: list[Any], kind: pa.DataType) -> tuple[pa.Array, Mask]:
    """Make a column; values that Arrow rejects, such as half a surrogate pair, become null and bad."""
    try:
        return pa.array(values, kind), np.zeros(len(values), np.bool_)
    except (ValueError, OverflowError):
        if len(values) == 1:
            return pa.nulls(1, kind), np.ones(1, np.bool_)
    pieces = [_array([value], kind) for value in values]
    return pa.concat_arrays([good for good, _ in pieces]), np.concatenate([bad for _, bad in pieces])


DECODERS: dict[str, Callable[[Sequence[pa.Field]], Decoder]] = {
    "text": text_decoder,
    "csv": csv_decoder,
    "json": json_decoder,
}
