"""What payloads hold beyond their schema."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any


def unknown_members(schema: Mapping[str, Any], value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of members that the schema neither names nor describes by `additionalProperties`.

    Schemas behind `$ref`, `oneOf` and the like are not looked into.
    """
    properties = schema.get("properties")
    if isinstance(value, dict) and isinstance(properties, Mapping):
        described = isinstance(schema.get("additionalProperties"), Mapping)
        for name, item in value.items():
            its = properties.get(name)
            member = f"{path}.{name}" if path else name
            if isinstance(its, Mapping):
                yield from unknown_members(its, item, member)
            elif name not in properties and not described:
                yield member
    items = schema.get("items")
    if isinstance(value, list) and isinstance(items, Mapping):
        for item in value:
            yield from unknown_members(items, item, f"{path}[]")


def anywhere(violation: str) -> str:
    """Return a violation without the positions in arrays: `items[].sku: not_a_string`."""
    return re.sub(r"\[\d+\]", "[]", violation)
