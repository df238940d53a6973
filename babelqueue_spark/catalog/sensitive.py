"""Which values of a payload a schema marks as sensitive, and how they are replaced in its JSON text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

MARK = "x-gdpr-sensitive"
"""Keyword of a JSON Schema: `true`, or the name of a category."""

Replace = Callable[[bytes], bytes]
"""Takes the JSON text of a value, returns the one in its place."""

_BRANCHES = ("allOf", "anyOf", "oneOf")
_CONDITIONS = ("then", "else")
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_encode = msgspec.json.Encoder().encode


@dataclass(eq=False)
class Place:
    """What the schema says of the values at one place.

    Attributes:
        marked: a value here is sensitive as a whole.
        properties: by name, the members of an object here.
        others: its other members.
        first: the first elements of an array here.
        rest: its other elements.
        leads: a mark lies here or below.
    """

    marked: bool = False
    properties: dict[str, Place] = field(default_factory=dict)
    others: Place | None = None
    first: list[Place] = field(default_factory=list)
    rest: Place | None = None
    leads: bool = False

    def below(self) -> Iterator[Place]:
        """The places of members and elements."""
        yield from self.properties.values()
        yield from self.first
        yield from (place for place in (self.others, self.rest) if place is not None)


class SensitiveFields:
    """The sensitive fields of one schema of `data`.

    A mark counts wherever it stands: in an array of arrays, in a member whose name has a dot, behind a local
    `$ref`, in any branch of `allOf`, `anyOf` and `oneOf`.

    Args:
        schema: a JSON Schema.

    Raises:
        ValueError: the schema marks `data` as a whole, or a `$ref` leads nowhere.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root = schema
        self._places: dict[tuple[int, ...], Place] = {}
        self._place = self._of([schema])
        if self._place.marked:
            raise ValueError(f"{MARK} marks all of 'data', which has to stay an object: mark its members")
        self._follow()

    def __bool__(self) -> bool:
        return self._place.leads

    def replaced(self, data: str, replace: Replace) -> str:
        """The JSON text with each sensitive value replaced; every other value keeps its text.

        Raises:
            ValueError, RecursionError: it is no JSON object, or too deep.
        """
        return _members(data.encode(), self._place, replace).decode()

    def _of(self, schemas: list[Mapping[str, Any]]) -> Place:
        """The place that all of the schemas describe."""
        found = self._expanded(schemas)
        key = tuple(sorted(map(id, found)))
        if key in self._places:
            return self._places[key]
        place = self._places[key] = Place(marked=any(map(_is_marked, found)))
        for name in {name for schema in found for name in _mapping(schema, "properties")}:
            given = [_mapping(schema, "properties").get(name) for schema in found]
            place.properties[name] = self._of(_schemas(given))
        place.others = self._maybe([schema.get("additionalProperties") for schema in found])
        first = [_first(schema) for schema in found]
        for number in range(max(map(len, first), default=0)):
            place.first.append(self._of(_schemas(each[number] for each in first if number < len(each))))
        place.rest = self._maybe([_rest(schema) for schema in found])
        return place

    def _maybe(self, given: list[Any]) -> Place | None:
        schemas = _schemas(given)
        return self._of(schemas) if schemas else None

    def _expanded(self, schemas: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The schemas, those to which they refer, and all of their branches."""
        found: dict[int, Mapping[str, Any]] = {}
        waiting = list(schemas)
        while waiting:
            schema = waiting.pop()
            if id(schema) in found:
                continue
            found[id(schema)] = schema
            waiting += _schemas(schema.get(name) for name in _CONDITIONS)
            for name in _BRANCHES:
                waiting += _schemas(schema.get(name) or ())
            if isinstance(schema.get("$ref"), str):
                waiting.append(self._referred(schema["$ref"]))
        return list(found.values())

    def _referred(self, reference: str) -> Mapping[str, Any]:
        found: Any = self._root
        if not reference.startswith("#"):
            raise ValueError(f"$ref '{reference}' leads out of its schema")
        for part in reference[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            raise ValueError(f"$ref '{reference}' leads nowhere")
        return found

    def _follow(self) -> None:
        """Find from which places a mark can be reached; places may form circles."""
        changed = True
        while changed:
            changed = False
            for place in self._places.values():
                if not place.leads and (place.marked or any(each.leads for each in place.below())):
                    place.leads = changed = True


def _is_marked(schema: Mapping[str, Any]) -> bool:
    mark = schema.get(MARK)
    return mark is True or (isinstance(mark, str) and mark != "")


def _mapping(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = schema.get(name)
    return found if isinstance(found, Mapping) else {}


def _schemas(given: Any) -> list[Mapping[str, Any]]:
    return [each for each in given if isinstance(each, Mapping)]


def _first(schema: Mapping[str, Any]) -> list[Any]:
    """What a schema says of the first elements of an array: by `prefixItems`, or a list in `items`."""
    for name in ("prefixItems", "items"):
        if isinstance(schema.get(name), list):
            return list(schema[name])
    return []


def _rest(schema: Mapping[str, Any]) -> Any:
    return schema.get("additionalItems" if isinstance(schema.get("items"), list) else "items")


def _value(text: bytes, place: Place | None, replace: Replace) -> bytes:
    if place is None or not place.leads:
        return text
    if place.marked:
        return replace(text)
    if text.startswith(b"{"):
        return _members(text, place, replace)
    if text.startswith(b"["):
        return _elements(text, place, replace)
    return text


def _members(text: bytes, place: Place, replace: Replace) -> bytes:
    members = _OBJECT.decode(text)
    for name, value in members.items():
        members[name] = msgspec.Raw(_value(bytes(value), place.properties.get(name, place.others), replace))
    return _encode(members)


def _elements(text: bytes, place: Place, replace: Replace) -> bytes:
    elements = _ARRAY.decode(text)
    places = [*place.first, *[place.rest] * (len(elements) - len(place.first))]
    changed = [_value(bytes(value), each, replace) for value, each in zip(elements, places, strict=False)]
    return _encode([msgspec.Raw(value) for value in changed])
