"""Registries for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.streams import envelope

ORDERS, MAILS = "urn:babel:orders:created", "urn:babel:mails:sent"
ORDER = {
    "type": "object",
    "required": ["order_id"],
    "properties": {
        "order_id": {"type": "integer", "minimum": 1},
        "amount": {"type": "number", "multipleOf": 0.01},
    },
}
MAIL = {"type": "object", "required": ["to"], "properties": {"to": {"type": "string", "minLength": 1}}}


def registry(folder: Path, schemas: Mapping[str, Any]) -> Path:
    """A registry.json with a file for each schema; returns its path."""
    (folder / "schemas").mkdir(parents=True, exist_ok=True)
    entries = []
    for urn, schema in schemas.items():
        name = f"schemas/{urn.replace(':', '-')}.json"
        (folder / name).write_text(json.dumps(schema, indent=2) + "\n")
        entries.append({"urn": urn, "schema": name, "owner": "orders", "status": "active"})
    path = folder / "registry.json"
    path.write_text(json.dumps({"schemas": entries}, indent=2) + "\n")
    return path


SECRET = "ann@shop.example"
_CONTACT = {"properties": {"email": {"type": "string", "x-gdpr-sensitive": "contact"}}}
FORMS: dict[str, Any] = {
    f"urn:babel:forms:{name}": {"$defs": {"contact": _CONTACT}, "properties": {"contact": contact}}
    for name, contact in {
        "type": {"type": "object", **_CONTACT},
        "no-type": _CONTACT,
        "types": {"type": ["object", "null"], **_CONTACT},
        "ref": {"$ref": "#/$defs/contact"},
        "all-of": {"allOf": [_CONTACT]},
        "any-of": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/contact"}]},
        "one-of": {"oneOf": [{"type": "string"}, _CONTACT]},
    }.items()
}
"""Schemas by URN that lead to the mark of `contact.email` in each way."""

STRAYS = [SECRET, [SECRET], [{"email": SECRET}], [[{"email": SECRET}]]]
"""Values of `contact` at another level than these schemas say."""
STRAYED = [(urn, {"contact": stray}) for urn in FORMS for stray in STRAYS]


def strayed() -> list[bytes]:
    """A body for each form and stray."""
    return [envelope(number, job=urn, data=data) for number, (urn, data) in enumerate(STRAYED)]
