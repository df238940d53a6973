"""The payload against the schema of its URN, as the SDKs judge it, and in their words.

They know the keywords type, required, properties, additionalProperties (false), items, enum, const,
minLength and minimum, and ignore all others.

Two ways, with one verdict. A payload that a strict decoder takes, made of the schema, has no violation; it
is not looked at further. Any other is parsed, and goes through a check that was made of the schema.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import GenericAlias
from typing import Annotated, Any, Literal

import msgspec

Schema = Mapping[str, Any]
Violation = list[Any]
"""The reason, then the steps to the place, the last one first; a step is a key or a position."""

Check = Callable[[Any], Violation | None]
"""Finds the first violation in a parsed value."""

_KINDS = {"string": str, "integer": int, "number": float, "boolean": bool, "null": type(None)}
_INT64 = 1 << 63
_SAMPLE, _MOST_FAILED = 200, 150
_NO_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_parse = msgspec.json.Decoder().decode


class Judge:
    """Finds the first violation in each of many payloads, for one schema."""

    def __init__(self, schema: Schema) -> None:
        self._check = _check(schema)
        self._decode = _certain_decoder(schema)

    def first_violations(self, payloads: Iterable[Any]) -> Iterator[str | None]:
        """Yield the first violation of each JSON text (UTF-8) as `path: reason`, or None."""
        decode, failed = self._decode, 0
        for number, payload in enumerate(payloads):
            if number == _SAMPLE and failed > _MOST_FAILED:
                decode = None  # it costs more than it saves here
            if decode is None:
                yield self.first_violation(payload)
                continue
            try:
                decode(payload)
            except _NO_JSON:
                failed += 1
                yield self.first_violation(payload)
            else:
                yield None

    def first_violation(self, payload: Any) -> str | None:
        """Return the first violation of a JSON text as `path: reason`, or None."""
        try:
            value = _parsed(payload)
        except (ValueError, RecursionError):
            return "<root>: not_json"
        found = self._check(value)
        return None if found is None else _worded(found)


def _parsed(payload: Any) -> Any:
    """Return the value of a JSON text, whatever Python's own parser takes."""
    try:
        return _parse(payload)
    except _NO_JSON:
        return json.loads(bytes(payload), parse_int=_integer_of)


def _integer_of(digits: str) -> float:
    """Return an integer; one with more digits than Python takes counts as a number out of range."""
    try:
        return int(digits)
    except ValueError:
        return float(digits)


def _worded(found: Violation) -> str:
    reason, *steps = found
    path = ""
    for step in reversed(steps):
        path = f"{path}[{step}]" if isinstance(step, int) else f"{path}.{step}" if path else step
    return f"{path or '<root>'}: {reason}"


# -- the check ---------------------------------------------------------------------------------------------


def _check(schema: Schema) -> Check:
    checks = [*_checks_of_values(schema), *_checks_of_type(schema)]
    if len(checks) == 1:
        return checks[0]

    def first(value: Any) -> Violation | None:
        for check in checks:
            found = check(value)
            if found is not None:
                return found
        return None

    return first


def _checks_of_values(schema: Schema) -> Iterator[Check]:
    if "const" in schema:
        yield _one_of([schema["const"]], "wrong_const")
    if isinstance(schema.get("enum"), list):
        yield _one_of(schema["enum"], "not_in_enum")


def _one_of(values: list[Any], reason: str) -> Check:
    """`1`, `1.0` and `true` are three values, but within an array or object they are one."""
    containers = [each for each in values if type(each) in (list, dict)]
    scalars = {(type(each), each) for each in values if type(each) not in (list, dict)}

    def check(value: Any) -> Violation | None:
        kind = type(value)
        is_one = value in containers if kind is list or kind is dict else (kind, value) in scalars
        return None if is_one else [reason]

    return check


def _checks_of_type(schema: Schema) -> Iterator[Check]:
    match schema.get("type"):
        case "object":
            yield _object(schema)
        case "array":
            yield _array(schema)
        case "string":
            yield _string(schema)
        case "integer":
            yield _integer(schema)
        case "number":
            yield _number(schema)
        case "boolean":
            yield lambda value: None if type(value) is bool else ["not_a_boolean"]
        case "null":
            yield lambda value: None if value is None else ["not_null"]


def _object(schema: Schema) -> Check:
    required = required_of(schema)
    checks = {key: (_valid_kind(each), _check(each)) for key, each in properties_of(schema).items()}
    unnamed = (None, None)
    closed = schema.get("additionalProperties") is False

    def check(value: Any) -> Violation | None:
        if type(value) is not dict:
            return ["not_an_object"]
        for key in required:
            if key not in value:
                return ["missing_required", key]
        for key, item in value.items():
            kind, check_item = checks.get(key, unnamed)
            if type(item) is kind:
                continue
            if check_item is not None:
                found = check_item(item)
                if found is not None:
                    found.append(key)
                    return found
            elif closed:
                return ["additional_not_allowed", key]
        return None

    return check


def _valid_kind(schema: Schema) -> type | None:
    """Return a type of which each value is valid, which saves the check; None where there is none."""
    if schema.keys() & {"const", "enum", "minLength", "minimum"}:
        return None
    kind = schema.get("type")
    return _KINDS.get(kind) if isinstance(kind, str) else None


def _array(schema: Schema) -> Check:
    items = schema.get("items")
    check_item = _check(items) if isinstance(items, Mapping) else None

    def check(value: Any) -> Violation | None:
        if type(value) is not list:
            return ["not_an_array"]
        if check_item is not None:
            for position, item in enumerate(value):
                found = check_item(item)
                if found is not None:
                    found.append(position)
                    return found
        return None

    return check


def _string(schema: Schema) -> Check:
    least = _min_length(schema)

    def check(value: Any) -> Violation | None:
        if type(value) is not str:
            return ["not_a_string"]
        return ["below_min_length"] if len(value) < least else None

    return check


def _integer(schema: Schema) -> Check:
    minimum = _minimum(schema)

    def check(value: Any) -> Violation | None:
        if type(value) is not int and not (type(value) is float and value.is_integer()):
            return ["not_an_integer"]
        return ["below_minimum"] if value < minimum and _float(value) < minimum else None

    return check


def _number(schema: Schema) -> Check:
    minimum = _minimum(schema)

    def check(value: Any) -> Violation | None:
        if type(value) is not float and type(value) is not int:
            return ["not_a_number"]
        return ["below_minimum"] if value < minimum and _float(value) < minimum else None

    return check


# -- the keywords ------------------------------------------------------------------------------------------


def required_of(schema: Schema) -> list[str]:
    """Return the names of members that a schema requires."""
    required = schema.get("required")
    return [key for key in required if isinstance(key, str)] if isinstance(required, list) else []


def properties_of(schema: Schema) -> dict[str, Schema]:
    """Return name → schema of the members that a schema describes."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {key: each for key, each in properties.items() if isinstance(each, Mapping)}


def _min_length(schema: Schema) -> int:
    found = schema.get("minLength")
    return int(found) if isinstance(found, int | float) else 0


def _minimum(schema: Schema) -> float:
    """Return the least float that a number may be, after rounding; -infinity where any may be."""
    found = schema.get("minimum")
    return _float(found) if type(found) in (int, float) else -math.inf


def _float(number: Any) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


# -- the decoder -------------------------------------------------------------------------------------------


class _UncertainError(Exception):
    """There is no type whose decoder takes nothing but payloads without a violation."""


def _certain_decoder(schema: Schema) -> Callable[[Any], Any] | None:
    """Return what raises for each payload that may have a violation; None where that cannot be made."""
    try:
        return msgspec.json.Decoder(_certain(schema)).decode
    except (_UncertainError, ValueError, TypeError, OverflowError):  # some keys and bounds msgspec refuses
        return None


def _certain(schema: Schema) -> Any:
    """Return a type of which each value that msgspec decodes into it has no violation."""
    if "const" in schema or isinstance(schema.get("enum"), list):
        return _certain_values(schema)
    match schema.get("type"):
        case "object":
            return _certain_object(schema)
        case "array":
            items = schema.get("items")
            return GenericAlias(list, (_certain(items) if isinstance(items, Mapping) else msgspec.Raw,))
        case "string":
            least = _min_length(schema)
            return Annotated[str, msgspec.Meta(min_length=least)] if least > 0 else str
        case "integer":
            return _certain_integer(schema)
        case "number":
            minimum = _minimum(schema)
            return float if minimum == -math.inf else Annotated[float, msgspec.Meta(ge=minimum)]
        case "boolean":
            return bool
        case "null":
            return None
    return msgspec.Raw


def _certain_values(schema: Schema) -> Any:
    """Return the texts, integers and null among the values; others go through the check."""
    check = _check(schema)
    allowed = [value for value in schema.get("enum", [schema.get("const")]) if check(value) is None]
    certain = [
        value
        for value in allowed
        if value is None or type(value) is str or (type(value) is int and -_INT64 <= value < _INT64)
    ]
    if not certain:
        raise _UncertainError
    return Literal[tuple(certain)]


def _certain_object(schema: Schema) -> Any:
    properties, required = properties_of(schema), required_of(schema)
    closed = schema.get("additionalProperties") is False
    unknown = [key for key in required if key not in properties]
    if closed and unknown:
        raise _UncertainError
    kinds = {key: _certain(each) for key, each in properties.items()} | dict.fromkeys(unknown, msgspec.Raw)
    names = {key: f"f{position}" for position, key in enumerate(kinds)}
    return msgspec.defstruct(
        "Payload",
        [(names[key], kind, *(() if key in required else (None,))) for key, kind in kinds.items()],
        rename={name: key for key, name in names.items()},
        kw_only=True,
        forbid_unknown_fields=closed,
        gc=False,
    )


def _certain_integer(schema: Schema) -> Any:
    minimum = _minimum(schema)
    if minimum == -math.inf:
        return int
    if not -_INT64 <= minimum < _INT64:
        raise _UncertainError
    return Annotated[int, msgspec.Meta(ge=math.ceil(minimum))]
