"""What of a new schema breaks those who still send by the old one, in the words of the SDKs' registry."""

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from babelqueue_spark.schemas.verdicts import Schema, properties_of, required_of


def breaks(old: Schema, new: Schema) -> list[str]:
    """Return the breaking changes from `old` to `new`, sorted, as `path: what`; empty = compatible.

    Beyond what the registry's tool reports: a type, a constant or items where any value was allowed.
    """
    return sorted(_breaks(old, new, ""))


def _breaks(old: Schema, new: Schema, path: str) -> Iterator[str]:
    at = f"{path}: " if path else ""
    types = _text(old.get("type")), _text(new.get("type"))
    if types[0] and types[1] and types[0] != types[1]:
        yield f"{at}type changed {_quoted(types[0])} → {_quoted(types[1])}"
        return
    yield from (at + change for change in _of_values(old, new))
    yield from (at + change for change in _of_members(old, new))
    properties = properties_of(new)
    for name, each in properties_of(old).items():
        member = f"{path}.{name}" if path else name
        if name in properties:
            yield from _breaks(each, properties[name], member)
        else:
            yield f"{member}: property removed"
    if isinstance(new.get("items"), Mapping):
        items = old.get("items")
        yield from _breaks(items if isinstance(items, Mapping) else {}, new["items"], f"{path}[]")


def _of_values(old: Schema, new: Schema) -> Iterator[str]:
    if _text(new.get("type")) and not _text(old.get("type")) and not _fits(old, new):
        yield f"type {_quoted(new['type'])} added where any value was allowed"
    if "const" in new and ("const" not in old or _shown(old["const"]) != _shown(new["const"])):
        yield f"const {_shown(new['const'])} set"
    before, now = old.get("enum"), new.get("enum")
    if isinstance(now, list) and not isinstance(before, list):
        yield "enum constraint added where any value was allowed"
    elif isinstance(now, list) and isinstance(before, list):
        allowed = {_shown(value) for value in now}
        yield from (f"enum value {_shown(value)} removed" for value in before if _shown(value) not in allowed)
    for keyword in ("minLength", "minimum"):
        least, most = _number(old.get(keyword)), _number(new.get(keyword))
        if most is not None and (least is None or most > least):
            yield f"{keyword} tightened"


def _of_members(old: Schema, new: Schema) -> Iterator[str]:
    added = [name for name in required_of(new) if name not in required_of(old)]
    yield from (f"property {_quoted(name)} is now required" for name in added)
    if new.get("additionalProperties") is False and old.get("additionalProperties") is not False:
        yield "additionalProperties tightened to false"


def _fits(old: Schema, new: Schema) -> bool:
    """Return whether all values that the old schema lists have the type that the new one wants."""
    kinds = {"string": str, "boolean": bool, "null": type(None)}
    values = old.get("enum", [old["const"]] if "const" in old else None)
    kind = kinds.get(new["type"])
    return isinstance(values, list) and kind is not None and all(isinstance(each, kind) for each in values)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _shown(value: Any) -> str:
    """Return a value as Go prints it."""
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return f"[{' '.join(map(_shown, value))}]"
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{_shown(value[key])}' for key in sorted(value))}]"
    number = Decimal(repr(float(value)))
    exponent = number.adjusted()
    if number and not -5 < exponent < 6:
        digits = format(number.normalize().scaleb(-exponent), "f")
        return f"{digits}e{exponent:+03d}"
    return format(number.normalize(), "f")
