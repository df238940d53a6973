"""A JSON Schema for what payloads look like: their members, which of them are always there, and formats."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any
from uuid import UUID

MOST_MEMBERS = 100
"""An object with more names than these is a map."""
MOST_LEVELS = 100
"""Members and elements below these are not looked at."""

_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})\Z")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}\Z")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z")
_FORMATS: dict[str, tuple[re.Pattern[str], Callable[[str], object]]] = {
    "date-time": (_TIME, datetime.fromisoformat),
    "date": (_DATE, date.fromisoformat),
    "uuid": (_UUID, UUID),
}


@dataclass
class Shape:
    """What the values at one place look like.

    Attributes:
        kinds: name of a JSON type → values.
        formats: name of a format → strings that have it.
        members: of objects, by name.
        others: of objects with more than `MOST_MEMBERS` names, all of them together.
        items: of arrays.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    members: dict[str, Shape] = field(default_factory=dict)
    others: Shape | None = None
    items: Shape | None = None

    @property
    def values(self) -> int:
        """How many values were added."""
        return self.kinds.total()

    def add(self, value: Any, levels: int = MOST_LEVELS) -> None:
        """Look at a parsed value, down to some levels below it."""
        if isinstance(value, dict):
            self.kinds["object"] += 1
            self._add_members(value, levels)
        elif isinstance(value, list):
            self.kinds["array"] += 1
            self._add_items(value, levels)
        else:
            self.kinds[_KINDS[type(value)]] += 1
            if isinstance(value, str):
                self.formats.update(name for name in _FORMATS if _has_format(value, name))

    def merge(self, other: Shape) -> None:
        """Take over all that another one has seen."""
        self.kinds += other.kinds
        self.formats += other.formats
        for name, member in other.members.items():
            self._member(name).merge(member)
        if other.others is not None:
            self._as_map().merge(other.others)
        if other.items is not None:
            self.items = self.items or Shape()
            self.items.merge(other.items)

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema that all values fit."""
        kinds = set(self.kinds)
        if "number" in kinds:
            kinds.discard("integer")
        others = sorted(kinds - {"null"})
        names = [*others, *(["null"] if "null" in kinds else [])]
        found: dict[str, Any] = {"type": names[0] if len(names) == 1 else names} if names else {}
        strings = self.kinds["string"]
        for name in _FORMATS:
            if strings and self.formats[name] == strings:
                found["format"] = name
        if "object" in others:
            found |= self._schema_of_members()
        if self.items is not None and self.items.values:
            found["items"] = self.items.schema()
        return found

    def _schema_of_members(self) -> dict[str, Any]:
        if self.others is not None:
            return {"additionalProperties": self.others.schema()}
        whole = self.kinds["object"]
        properties = {
            name: {**member.schema(), "$comment": f"in {member.values} of {whole}"}
            for name, member in self.members.items()
        }
        required = [name for name, member in self.members.items() if member.values == whole]
        return {"required": required, "properties": properties}

    def _add_members(self, value: dict[str, Any], levels: int) -> None:
        if not levels:
            self._as_map()
            return
        for name, item in value.items():
            self._member(name).add(item, levels - 1)

    def _add_items(self, value: list[Any], levels: int) -> None:
        self.items = self.items or Shape()
        for item in value if levels else ():
            self.items.add(item, levels - 1)

    def _member(self, name: str) -> Shape:
        if self.others is None and name not in self.members and len(self.members) == MOST_MEMBERS:
            return self._as_map()
        return self.others or self.members.setdefault(name, Shape())

    def _as_map(self) -> Shape:
        if self.others is None:
            self.others = Shape()
            for member in self.members.values():
                self.others.merge(member)
            self.members = {}
        return self.others


def _has_format(text: str, name: str) -> bool:
    pattern, parse = _FORMATS[name]
    if not pattern.match(text):
        return False
    try:
        parse(text.upper())
    except ValueError:
        return False
    return True
