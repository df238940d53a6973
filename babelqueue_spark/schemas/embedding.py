"""A schema with all that it refers to in it, to stand within another document or in a file of its own."""

import re
from collections.abc import Mapping
from typing import Any

from babelqueue_spark.errors import OptionError
from babelqueue_spark.schemas.documents import Documents, Place, locate

_VALUES = {"const", "enum", "default", "examples"}
_BY_NAME = {"properties", "patternProperties", "definitions", "$defs", "dependencies", "dependentSchemas"}


def embedded(documents: Documents, place: Place, prefix: str) -> dict[str, Any]:
    """Return the schema at a place, with copies in `definitions` of what lies outside of it.

    Args:
        documents: has the schema and what it refers to.
        place: of the schema, or of a reference to it.
        prefix: the pointer to the schema in the document that it is for, such as `#`.

    Raises:
        OptionError: it is no object, or a `$ref` refers to nothing, or to itself.
    """
    root = follow(documents, place)
    schema = documents.at(root)
    if not isinstance(schema, Mapping):
        raise OptionError(f"catalog: {'/'.join((root[0], *root[1]))} is no JSON Schema: it must be an object")
    return _Embedding(documents, root, prefix).of(schema)


def follow(documents: Documents, place: Place) -> Place:
    """Return the place to which references lead from a place.

    Raises:
        OptionError: one refers to nothing, to itself or to the web.
    """
    seen = set()
    while isinstance(node := documents.at(place), Mapping) and isinstance(node.get("$ref"), str):
        reference, base = node["$ref"], place[0]
        found = locate(reference, base)
        if found is None or place in seen:
            what = "refers to itself" if found else "is on the web"
            raise OptionError(f"catalog: {base}: {reference} {what}: put the schema itself there")
        documents.resolve(reference, base)
        seen.add(place)
        place = found
    return place


class _Embedding:
    def __init__(self, documents: Documents, root: Place, prefix: str) -> None:
        self._documents, self._root, self._prefix = documents, root, prefix
        self._names: dict[Place, str] = {}
        self._taken: set[str] = set()
        self._definitions: dict[str, Any] = {}

    def of(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        own = schema.get("definitions")
        self._taken.update(own if isinstance(own, Mapping) else ())
        found: dict[str, Any] = self._copy(schema, self._root[0])
        if self._definitions:
            found["definitions"] = {**found.get("definitions", {}), **self._definitions}
        return found

    def _copy(self, node: Any, base: str, by_name: bool = False) -> Any:
        """Copy a schema, or schemas by name, with references that hold where it is to stand."""
        if isinstance(node, list):
            return [self._copy(each, base) for each in node]
        if not isinstance(node, Mapping):
            return node
        found = {}
        for key, value in node.items():
            if by_name:
                found[key] = self._copy(value, base)
            elif key == "$ref" and isinstance(value, str):
                found[key] = self._reference(value, base)
            elif key in _VALUES:
                found[key] = value
            elif key != "$id":  # references would begin there
                found[key] = self._copy(value, base, key in _BY_NAME)
        return found

    def _reference(self, reference: str, base: str) -> str:
        target = self._documents.resolve(reference, base)
        place = locate(reference, base)
        if target is None or place is None:
            return reference
        within = self._steps_within(place)
        steps = ("definitions", self._defined(place, target[0])) if within is None else within
        return "/".join((self._prefix, *(step.replace("~", "~0").replace("/", "~1") for step in steps)))

    def _steps_within(self, place: Place) -> tuple[str, ...] | None:
        (name, steps), (root, above) = place, self._root
        return steps[len(above) :] if name == root and steps[: len(above)] == above else None

    def _defined(self, place: Place, schema: Any) -> str:
        """Return the name among the definitions that a schema from elsewhere has, or gets."""
        if place not in self._names:
            wanted = re.sub(
                r"\W", "_", (place[1] or (place[0].rpartition("/")[2].removesuffix(".json"),))[-1]
            )
            name = free(wanted, self._taken)
            self._taken.add(name)
            self._names[place] = name
            self._definitions[name] = self._copy(schema, place[0])
        return self._names[place]


def free(wanted: str, taken: set[str]) -> str:
    """Return a name that is not taken: the wanted one, or one with a number."""
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    return name
