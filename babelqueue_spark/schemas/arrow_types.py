"""The type of a column for what a JSON Schema describes; what has none stays JSON text."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from babelqueue_spark.schemas.documents import Documents

JSON_TEXT = pa.string()
TIMESTAMP = pa.timestamp("us", tz="UTC")
_DIGITS = 38
_FORMATS = {"date-time": TIMESTAMP, "date": pa.date32()}
_PLAIN = {"boolean": pa.bool_(), "integer": pa.int64(), "null": JSON_TEXT}
_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def arrow_type(documents: Documents, urn: str, untyped: pa.DataType = JSON_TEXT) -> pa.DataType:
    """Return the type of the payload of a URN: a struct or a map, or `untyped` if it may be anything else.

    What has no fixed type within it is `untyped` too.

    Raises:
        KeyError: there is no schema for the URN.
        OptionError: a `$ref` refers to nothing.
    """
    name = documents.names[urn]
    found = _Types(documents, untyped).of(documents.contents[name], name)
    return found if pa.types.is_struct(found) or pa.types.is_map(found) else untyped


class _Types:
    """Walks through a schema; `_open` are the references that it is within."""

    def __init__(self, documents: Documents, untyped: pa.DataType) -> None:
        self._documents, self._untyped = documents, untyped
        self._open: list[tuple[str, str]] = []

    def of(self, schema: Any, base: str) -> pa.DataType:
        """Return the type of a schema in the document `base`."""
        if not isinstance(schema, Mapping):
            return self._untyped
        if isinstance(schema.get("$ref"), str):
            return self._referred(schema["$ref"], base)
        for keyword in ("oneOf", "anyOf"):
            if isinstance(schema.get(keyword), list):
                return self._one_of(schema[keyword], base)
        match _kinds(schema):
            case ["object"]:
                return self._object(schema, base)
            case ["array"] if isinstance(schema.get("items"), Mapping):
                return pa.list_(self.of(schema["items"], base))
            case ["string"]:
                return _string(schema)
            case ["number"]:
                return _number(schema)
            case ["integer", "number"]:
                return pa.float64()
            case [kind]:
                return _PLAIN.get(kind, self._untyped)
        return self._untyped

    def _referred(self, reference: str, base: str) -> pa.DataType:
        found = self._documents.resolve(reference, base)
        if found is None or (reference, base) in self._open:
            return self._untyped
        self._open.append((reference, base))
        try:
            return self.of(*found)
        finally:
            self._open.pop()

    def _one_of(self, schemas: Sequence[Any], base: str) -> pa.DataType:
        """Return the type that all have, besides the one for null; `untyped` where they differ."""
        others = [each for each in schemas if not (isinstance(each, Mapping) and _kinds(each) == ["null"])]
        found = {self.of(each, base) for each in others}
        if found == {pa.int64(), pa.float64()}:
            return pa.float64()
        return found.pop() if len(found) == 1 else self._untyped

    def _object(self, schema: Mapping[str, Any], base: str) -> pa.DataType:
        properties, others = schema.get("properties"), schema.get("additionalProperties")
        if isinstance(properties, Mapping) and properties:
            if len({name.lower() for name in properties}) < len(properties):
                return self._untyped  # Spark's columns do not differ by case alone
            return pa.struct([pa.field(name, self.of(each, base)) for name, each in properties.items()])
        return pa.map_(pa.string(), self.of(others, base)) if isinstance(others, Mapping) else self._untyped


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    """Return the names of types that a schema allows, sorted, without null unless it is the only one."""
    given = schema.get("type")
    if isinstance(given, str):
        names = {given}
    elif isinstance(given, list):
        names = {each for each in given if isinstance(each, str)}
    else:
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        names = {_NAMES.get(type(each), "") for each in values} if isinstance(values, list) else set()
        if not names and ("properties" in schema or "additionalProperties" in schema):
            names = {"object"}
    return sorted(names - {"null"} or names)


def _string(schema: Mapping[str, Any]) -> pa.DataType:
    if schema.get("contentEncoding") == "base64":
        return pa.binary()
    form = schema.get("format")
    return _FORMATS.get(form, pa.string()) if isinstance(form, str) else pa.string()


def _number(schema: Mapping[str, Any]) -> pa.DataType:
    """Return a decimal of as many places as `multipleOf` has, else a double."""
    step = schema.get("multipleOf")
    if not isinstance(step, int | float) or step <= 0:
        return pa.float64()
    exponent = Decimal(str(step)).normalize().as_tuple().exponent
    places = max(-exponent, 0) if isinstance(exponent, int) else _DIGITS
    return pa.decimal128(_DIGITS, places) if places < _DIGITS else pa.float64()
