"""Registries for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
