"""JSON text into typed Arrow columns: what does not fit its type is null, and nothing raises.

One recursion over the wanted type; every level works on a whole column of raw JSON values, so that
leaves are converted from their exact text (decimals keep their digits).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any

import msgspec
import pyarrow as pa

Raws = Sequence[bytes | None]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INTEGER = re.compile(rb"-?\d{1,19}\Z")
_NUMBER = re.compile(rb"-?\d+(\.\d+)?([eE][+-]?\d+)?\Z")
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_MAP = msgspec.json.Decoder(dict[str, msgspec.Raw])
_STRING = msgspec.json.Decoder(str)


def typed(texts: pa.StringArray, wanted: pa.DataType) -> pa.Array:
    """A column of JSON texts as a column of `wanted`, null where a value does not fit.

    Numbers are taken from their text; timestamps from epoch milliseconds or RFC 3339 (UTC when no
    offset is given); decimals from numbers or numeric strings, rounded half up to the scale; binary
    from base64; a string column takes any value, as JSON text when it is not a string.
    """
    return _column([None if text in (None, "null") else text.encode() for text in texts.to_pylist()], wanted)


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
    names = [f"f{i}" for i in range(len(fields))]
    decoder = msgspec.json.Decoder(_struct_type(tuple(field.name for field in fields), tuple(names)))
    objects = [_decode(decoder, raw) for raw in raws]
    children = [
        _column([_raw(None if o is None else getattr(o, name)) for o in objects], field.type)
        for name, field in zip(names, fields, strict=True)
    ]
    mask = pa.array([o is None for o in objects], pa.bool_())
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def _struct_type(keys: tuple[str, ...], names: tuple[str, ...]) -> type[msgspec.Struct]:
    return msgspec.defstruct(
        "Data",
        [(name, msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for name in names],
        rename=dict(zip(names, keys, strict=True)),
        gc=False,
    )


def _raw(value: Any) -> bytes | None:
    if value is None or value is msgspec.UNSET:
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
    offsets: list[int | None] = []
    position = 0
    for group in groups:
        offsets.append(None if group is None else position)
        position += 0 if group is None else len(group)
    return pa.array([*offsets, position], pa.int32())


def _leaf(wanted: pa.DataType) -> Callable[[bytes], Any]:
    if pa.types.is_string(wanted):
        return _string
    if pa.types.is_boolean(wanted):
        return {b"true": True, b"false": False}.get
    if pa.types.is_integer(wanted):
        return lambda raw: _integer(raw, wanted.bit_width)
    if pa.types.is_floating(wanted):
        return lambda raw: float(raw) if _NUMBER.match(raw) else None
    if pa.types.is_decimal(wanted):
        return lambda raw: _decimal(raw, wanted.precision, wanted.scale)
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
    value = _decode(_STRING, raw)
    return None if value is None else value.encode("utf-8", "replace").decode()


def _integer(raw: bytes, bits: int) -> int | None:
    if not _INTEGER.match(raw):
        return None
    value = int(raw)
    return value if -(1 << bits - 1) <= value < 1 << bits - 1 else None


def _decimal(raw: bytes, precision: int, scale: int) -> Decimal | None:
    text = raw[1:-1] if raw.startswith(b'"') else raw
    if not _NUMBER.match(text) or len(text) > 400:
        return None
    try:
        value = Decimal(text.decode())
        if value.adjusted() >= precision - scale:
            return None
        value = value.quantize(Decimal(1).scaleb(-scale), rounding=ROUND_HALF_UP)
    except InvalidOperation:
        return None
    return value if value.adjusted() < precision - scale or not value else None


def _timestamp(raw: bytes, *, naive: bool) -> datetime | None:
    try:
        if _INTEGER.match(raw):
            value = _EPOCH + timedelta(milliseconds=int(raw))
        elif raw.startswith(b'"'):
            value = datetime.fromisoformat(_STRING.decode(raw))
        else:
            return None
    except (ValueError, OverflowError):
        return None
    value = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
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
