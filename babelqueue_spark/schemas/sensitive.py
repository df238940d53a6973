"""Which values of a payload a schema marks as sensitive, and how they are replaced in its JSON text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa

from babelqueue_spark.envelope.jsontext import without_surrogate_escapes
from babelqueue_spark.errors import OptionError
from babelqueue_spark.schemas.documents import Documents

MARK = "x-gdpr-sensitive"
"""Keyword of a JSON Schema: `true`, or the name of a category."""

Replace = Callable[[bytes], bytes]
"""Takes the JSON text of a value, returns the one in its place."""

Schema = tuple[Mapping[str, Any], str]
"""A schema, and the document it is in."""

_BRANCHES = ("allOf", "anyOf", "oneOf")
_CONDITIONS = ("then", "else")
_DYNAMIC = {"$dynamicRef", "$recursiveRef"}
_FOLLOWED = frozenset(
    [
        *(*_BRANCHES, *_CONDITIONS, "$ref", "$defs", "definitions", "properties", "additionalProperties"),
        *("items", "prefixItems", "additionalItems", "const", "enum", "default", "examples"),
    ]
)
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

    @property
    def members(self) -> list[Place]:
        """The places of an object here."""
        return [*self.properties.values(), *([self.others] if self.others else ())]

    @property
    def elements(self) -> list[Place]:
        """The places of an array here."""
        return [*self.first, *([self.rest] if self.rest else ())]

    @cached_property
    def by_members(self) -> bool:
        """Whether an object leads to marks."""
        return _lead(self.members)

    @cached_property
    def by_elements(self) -> bool:
        """Whether an array leads to marks."""
        return _lead(self.elements)


class SensitiveFields:
    """The sensitive fields in the payload of one URN.

    A mark counts wherever it stands: in an array of arrays, in a member whose name has a dot, behind a
    `$ref`, in any branch of `allOf`, `anyOf` and `oneOf`. Where marks lie below a place, any other value
    there than null, or the object or array that has them, is sensitive too.

    Raises:
        OptionError: the schema marks all of `data`, or a `$ref` refers to nothing that is there.
    """

    def __init__(self, documents: Documents, urn: str) -> None:
        name = documents.names[urn]
        self._place = _Places(documents).of([(documents.contents[name], name)])
        if self._place.marked or (self._place.leads and not self._place.by_members):
            raise OptionError(
                f"catalog: {name}: {MARK} marks all of 'data', which has to stay an object: mark its members"
            )

    def __bool__(self) -> bool:
        return self._place.leads

    def replaced(self, data: str, replace: Replace) -> str:
        """Return the JSON text with each sensitive value replaced; every other value keeps its text.

        Raises:
            ValueError, RecursionError: it is no JSON object, or too deep.
        """
        return _members(data.encode(), self._place, replace).decode()


def replaced(
    job: pa.Array, data: pa.Array, fields: Mapping[str, SensitiveFields], replace: Replace
) -> pa.Array:
    """Return `data` with its sensitive values replaced; null where it is no JSON object.

    Args:
        job: the URN of each row; a URN without sensitive fields keeps its data.
        data: JSON texts.
        fields: URN → its sensitive fields.
        replace: a value that it refuses with `ValueError` makes null of the payload.
    """
    found = []
    for urn, text in zip(job.to_pylist(), data.to_pylist(), strict=True):
        marked = fields.get(urn)
        found.append(_of_row(marked, text, replace) if marked and text is not None else text)
    return pa.array(found, pa.string())


def _of_row(fields: SensitiveFields, text: str, replace: Replace) -> str | None:
    try:
        return fields.replaced(without_surrogate_escapes(text), replace)
    except (ValueError, RecursionError):
        return None


class _Places:
    """Makes the places of a schema. Schemas may refer to themselves, so places may form circles."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._known: dict[tuple[int, ...], Place] = {}

    def of(self, schemas: Sequence[Schema]) -> Place:
        """Return the place that all of the schemas describe, and those below it."""
        place = self._of(schemas)
        changed = True
        while changed:
            changed = False
            for each in self._known.values():
                if not each.leads and (each.marked or _lead(each.members + each.elements)):
                    each.leads = changed = True
        return place

    def _of(self, schemas: Sequence[Schema]) -> Place:
        found = self._expanded(schemas)
        key = tuple(sorted(id(schema) for schema, _ in found))
        if key in self._known:
            return self._known[key]
        place = self._known[key] = Place(marked=any(_is_marked(schema) for schema, _ in found))
        for name in {name for schema, _ in found for name in _mapping(schema, "properties")}:
            given = ((_of_member(schema, name), base) for schema, base in found)
            place.properties[name] = self._of(_schemas(given))
        place.others = self._maybe((schema.get("additionalProperties"), base) for schema, base in found)
        first = [(_first(schema), base) for schema, base in found]
        for number in range(max((len(each) for each, _ in first), default=0)):
            given = ((each[number], base) for each, base in first if number < len(each))
            place.first.append(self._of(_schemas(given)))
        place.rest = self._maybe((_rest(schema), base) for schema, base in found)
        return place

    def _maybe(self, given: Iterable[tuple[Any, str]]) -> Place | None:
        schemas = _schemas(given)
        return self._of(schemas) if schemas else None

    def _expanded(self, schemas: Sequence[Schema]) -> list[Schema]:
        """Return the schemas, those to which they refer, and all of their branches."""
        found: dict[int, Schema] = {}
        waiting = list(schemas)
        while waiting:
            schema, base = waiting.pop()
            if id(schema) in found:
                continue
            found[id(schema)] = schema, base
            for keyword in _hidden_marks(schema):
                raise OptionError(f"catalog: {base}: {MARK} is not followed within '{keyword}'")
            self._check_references(schema, base)
            waiting += _schemas((schema.get(name), base) for name in _CONDITIONS)
            waiting += _schemas((each, base) for name in _BRANCHES for each in schema.get(name) or ())
            if isinstance(schema.get("$ref"), str):
                waiting.append(self._referred(schema["$ref"], base))
        return list(found.values())

    def _check_references(self, schema: Mapping[str, Any], base: str) -> None:
        """Raise `OptionError` for a reference that depends on who follows it, where anything is marked."""
        for keyword in _DYNAMIC & schema.keys():
            if any(any(_marked_within(each)) for each in self._documents.contents.values()):
                raise OptionError(f"catalog: {base}: {MARK} is not followed behind '{keyword}': use $ref")

    def _referred(self, reference: str, base: str) -> Schema:
        found = self._documents.resolve(reference, base)
        if found is None or not isinstance(found[0], Mapping):
            raise OptionError(
                f"catalog: {base} refers to {reference}, which may mark sensitive fields, and cannot be read"
            )
        return found


def _lead(places: list[Place]) -> bool:
    return any(place.leads for place in places)


def _of_member(schema: Mapping[str, Any], name: str) -> Any:
    """Return what one schema says of a member: by its name, else as one of the others."""
    named = _mapping(schema, "properties")
    return named[name] if name in named else schema.get("additionalProperties")


def _hidden_marks(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keywords of a schema that lead to marks, and are not followed."""
    for name, value in schema.items():
        if name not in _FOLLOWED and any(True for _ in _marked_within(value)):
            yield name


def _marked_within(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        if _is_marked(value):
            yield value
        for each in value.values():
            yield from _marked_within(each)
    elif isinstance(value, list):
        for each in value:
            yield from _marked_within(each)


def _is_marked(schema: Mapping[str, Any]) -> bool:
    mark = schema.get(MARK)
    return mark is True or (isinstance(mark, str) and mark != "")


def _mapping(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = schema.get(name)
    return found if isinstance(found, Mapping) else {}


def _schemas(given: Iterable[tuple[Any, str]]) -> list[Schema]:
    return [(each, base) for each, base in given if isinstance(each, Mapping)]


def _first(schema: Mapping[str, Any]) -> list[Any]:
    """Return what a schema says of the first elements of an array: by `prefixItems`, or a list in `items`."""
    for name in ("prefixItems", "items"):
        if isinstance(schema.get(name), list):
            return list(schema[name])
    return []


def _rest(schema: Mapping[str, Any]) -> Any:
    return schema.get("additionalItems" if isinstance(schema.get("items"), list) else "items")


def _value(text: bytes, place: Place | None, replace: Replace) -> bytes:
    if place is None or not place.leads:
        return text
    if not place.marked:
        if text == b"null":
            return text
        if place.by_members and text.startswith(b"{"):
            return _members(text, place, replace)
        if place.by_elements and text.startswith(b"["):
            return _elements(text, place, replace)
    return replace(text)


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
