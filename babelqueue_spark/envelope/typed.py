"""JSON text into typed Arrow columns: what does not fit its type is null, and nothing raises.

Two ways. Payloads that fit the wanted type are parsed into it at once, whole. The others, in which some
value does not fit, go through a recursion over the type; every level of it works on a column of raw JSON
values. Both convert decimals, times and binaries from their exact text.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import cache
from itertools import chain
from operator import attrgetter
from types import GenericAlias
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from babelqueue_spark.envelope.jsontext import without_surrogate_escapes
from babelqueue_spark.envelope.scan import is_value, raws_of

JSON_VALUE = pa.large_string()
"""The type of JSON text that keeps the quotes of a string, to be parsed by others."""
Raws = Sequence[bytes | None]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INTEGER = re.compile(rb"-?\d{1,19}\Z")
_NUMBER = re.compile(rb"-?\d+(\.\d+)?([eE][+-]?\d+)?\Z")
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_MAP = msgspec.json.Decoder(dict[str, msgspec.Raw])
_STRING = msgspec.json.Decoder(str)
_MISFIT = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _Missing:
    """An object without members."""

    def __getattr__(self, _: str) -> None:
        return None


_MISSING = _Missing()


class Payloads(NamedTuple):
    """Payloads that were parsed once: for their values, and for whether they are JSON at all."""

    column: pa.Array
    """of the wanted type, null where a value does not fit"""
    unsound: list[int]
    """the rows that are not one JSON value"""


def typed(texts: pa.StringArray, wanted: pa.DataType) -> pa.Array:
    """Return a column of JSON texts as a column of `wanted`, null where a value does not fit.

    Numbers are taken from their text; timestamps from epoch milliseconds or RFC 3339 (UTC when no
    offset is given); decimals from numbers or numeric strings, rounded half up to the scale; binary
    from base64; a string column takes any value, as JSON text when it is not a string; `JSON_VALUE` takes
    the JSON text of any.
    """
    raws = [
        raw if raw is None or b"\\u" not in raw else without_surrogate_escapes(raw.decode()).encode()
        for raw in raws_of(texts)
    ]
    return payloads(raws, wanted).column


def payloads(raws: Raws, wanted: pa.DataType) -> Payloads:
    """Return `typed` of texts of UTF-8 that need not be JSON; half a surrogate pair makes a text invalid."""
    values, misfits = _fitting(raws, _parser(wanted))
    column = _of_values(values, wanted)
    if not misfits:
        return Payloads(column, [])
    both = pa.concat_arrays([column, _column([raws[row] for row in misfits], wanted)])
    rows = np.arange(len(raws))
    rows[misfits] = np.arange(len(raws), len(both))
    return Payloads(both.take(pa.array(rows)), [row for row in misfits if not is_value(raws[row])])


# --- what fits its type -----------------------------------------------------------------------------------


def _fitting(raws: Raws, parse: Callable[[Any], Any]) -> tuple[list[Any], list[int]]:
    """Return the payloads in the wanted type, None where one does not fit, and the rows of those."""
    with suppress(*_MISFIT, TypeError):  # of None
        return list(map(parse, raws)), []
    values: list[Any] = []
    misfits: list[int] = []
    for row, raw in enumerate(raws):
        try:
            values.append(None if raw is None else parse(raw))
        except _MISFIT:
            values.append(None)
            misfits.append(row)
    return values, misfits


@cache
def _parser(wanted: pa.DataType) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(_annotation(wanted)).decode


def _annotation(wanted: pa.DataType) -> Any:
    """Return the type that takes exactly what fits `wanted`; Raw where the text decides."""
    kind: Any = msgspec.Raw
    if pa.types.is_struct(wanted):
        fields = [wanted.field(i) for i in range(wanted.num_fields)]
        kind = _struct_type(
            tuple(field.name for field in fields), tuple(_annotation(field.type) for field in fields)
        )
    elif pa.types.is_map(wanted):
        kind = GenericAlias(dict, (str, _annotation(wanted.item_type)))
    elif pa.types.is_list(wanted):
        kind = GenericAlias(list, (_annotation(wanted.value_type),))
    elif pa.types.is_string(wanted):
        kind = str
    elif pa.types.is_boolean(wanted):
        kind = bool
    elif pa.types.is_floating(wanted):
        kind = float
    elif pa.types.is_integer(wanted):
        limit = 1 << wanted.bit_width - 1
        kind = Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)]
    return kind if kind is msgspec.Raw else kind | None


def _of_values(values: list[Any], wanted: pa.DataType) -> pa.Array:
    if not pa.types.is_nested(wanted):
        return pa.array(
            values if _annotation(wanted) is not msgspec.Raw else _of_raws(values, wanted), wanted
        )
    present = [value for value in values if value is not None]
    if pa.types.is_struct(wanted):
        whole = len(present) == len(values)
        filled = values if whole else [_MISSING if value is None else value for value in values]
        fields = [wanted.field(i) for i in range(wanted.num_fields)]
        children = [
            _of_values(list(map(attrgetter(name), filled)), field.type)
            for name, field in zip(_names(fields), fields, strict=True)
        ]
        mask = None if whole else pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
    offsets = _offsets(values)
    if pa.types.is_map(wanted):
        keys = pa.array(chain.from_iterable(present), wanted.key_type)
        items = _of_values([item for value in present for item in value.values()], wanted.item_type)
        return pa.MapArray.from_arrays(offsets, keys, items).cast(wanted)
    items = _of_values(list(chain.from_iterable(present)), wanted.value_type)
    return pa.ListArray.from_arrays(offsets, items).cast(wanted)


def _of_raws(values: list[Any], wanted: pa.DataType) -> list[Any]:
    convert = _leaf(wanted)
    return [None if text is None else convert(text) for text in map(_raw, values)]


# --- what does not ----------------------------------------------------------------------------------------


def _column(raws: Raws, wanted: pa.DataType) -> pa.Array:
    if pa.types.is_struct(wanted):
        return _struct(raws, wanted)
    if pa.types.is_map(wanted):
        return _map(raws, wanted)
    if pa.types.is_list(wanted):
        return _list(raws, wanted)
    convert = _leaf(wanted)
    return pa.array([None if raw is None else convert(raw) for raw in raws], wanted)


def _decode(decoder: msgspec.json.Decoder[Any], raw: bytes | None) -> Any:
    if raw is None:
        return None
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _struct(raws: Raws, wanted: pa.StructType) -> pa.StructArray:
    fields = [wanted.field(i) for i in range(wanted.num_fields)]
    kind = _struct_type(tuple(field.name for field in fields), (msgspec.Raw,) * len(fields))
    decoder = msgspec.json.Decoder(kind)
    objects = [_decode(decoder, raw) for raw in raws]
    children = [
        _column([_raw(None if o is None else getattr(o, name)) for o in objects], field.type)
        for name, field in zip(_names(fields), fields, strict=True)
    ]
    mask = pa.array([o is None for o in objects], pa.bool_())
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def _struct_type(keys: tuple[str, ...], kinds: tuple[Any, ...]) -> type[msgspec.Struct]:
    """Return a Struct of members that may be missing, by position: their keys need not be identifiers."""
    names = _names(keys)
    return msgspec.defstruct(
        "Data",
        [(name, kind, None) for name, kind in zip(names, kinds, strict=True)],
        rename=dict(zip(names, keys, strict=True)),
        gc=False,
    )


def _names(fields: Sequence[Any]) -> list[str]:
    return [f"f{position}" for position in range(len(fields))]


def _raw(value: Any) -> bytes | None:
    if value is None:
        return None
    text = bytes(value)
    return None if text == b"null" else text


def _list(raws: Raws, wanted: pa.ListType) -> pa.ListArray:
    lists = [_decode(_LIST, raw) for raw in raws]
    values = [_raw(value) for items in lists if items is not None for value in items]
    array = pa.ListArray.from_arrays(_offsets(lists), _column(values, wanted.value_type))
    return array.cast(wanted)


def _map(raws: Raws, wanted: pa.MapType) -> pa.MapArray:
    maps = [_decode(_MAP, raw) for raw in raws]
    keys = pa.array([key for items in maps if items is not None for key in items], wanted.key_type)
    values = [_raw(value) for items in maps if items is not None for value in items.values()]
    return pa.MapArray.from_arrays(_offsets(maps), keys, _column(values, wanted.item_type)).cast(wanted)


def _offsets(groups: Sequence[Any]) -> pa.Int32Array:
    lengths = [0 if group is None else len(group) for group in groups]
    missing = [*(group is None for group in groups), False]
    return pa.array(np.cumsum([0, *lengths]), pa.int32(), mask=np.array(missing))


def _leaf(wanted: pa.DataType) -> Callable[[bytes], Any]:
    if pa.types.is_string(wanted):
        return _string
    if wanted == JSON_VALUE:
        return bytes.decode
    if pa.types.is_boolean(wanted):
        return {b"true": True, b"false": False}.get
    if pa.types.is_integer(wanted):
        return lambda raw: _integer(raw, wanted.bit_width)
    if pa.types.is_floating(wanted):
        return lambda raw: float(raw) if _NUMBER.match(raw) else None
    if pa.types.is_decimal(wanted):
        context = Context(prec=wanted.precision, rounding=ROUND_HALF_UP)
        return lambda raw: _decimal(raw, wanted.scale, context)
    if pa.types.is_timestamp(wanted):
        return lambda raw: _timestamp(raw, naive=wanted.tz is None)
    if pa.types.is_date(wanted):
        return _date
    if pa.types.is_binary(wanted):
        return _binary
    return lambda _: None


def _string(raw: bytes) -> str | None:
    if not raw.startswith(b'"'):
        return raw.decode()
    value: str | None = _decode(_STRING, raw)
    return value


def _integer(raw: bytes, bits: int) -> int | None:
    if not _INTEGER.match(raw):
        return None
    value = int(raw)
    return value if -(1 << bits - 1) <= value < 1 << bits - 1 else None


def _decimal(raw: bytes, scale: int, context: Context) -> Decimal | None:
    """Return the number rounded to the scale; None where that takes more digits than the context has."""
    text = raw[1:-1] if raw.startswith(b'"') else raw
    if not _NUMBER.match(text) or len(text) > 400:
        return None
    try:
        return Decimal(text.decode()).quantize(Decimal(1).scaleb(-scale), context=context)
    except InvalidOperation:
        return None


def _timestamp(raw: bytes, *, naive: bool) -> datetime | None:
    try:
        if _INTEGER.match(raw):
            value = _EPOCH + timedelta(milliseconds=int(raw))
        elif raw.startswith(b'"'):
            value = datetime.fromisoformat(_STRING.decode(raw).upper())
        else:
            return None
        value = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return value.replace(tzinfo=None) if naive else value


def _date(raw: bytes) -> date | None:
    try:
        return date.fromisoformat(_STRING.decode(raw))
    except (ValueError, msgspec.DecodeError):
        return None


def _binary(raw: bytes) -> bytes | None:
    try:
        return base64.b64decode(_STRING.decode(raw), validate=True)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        return None
