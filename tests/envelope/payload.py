"""The payload against a JSON Schema: an oracle."""

import json
from typing import Any

import pyarrow as pa
from jsonschema import Draft7Validator, validators


def violations(data: Any, schema: dict[str, Any]) -> Any:
    """What is wrong with each payload, an array of JSON texts; null = valid, or no payload."""
    make = validators.validator_for(schema, default=Draft7Validator)
    make.check_schema(schema)
    validator = make(schema)
    return pa.array([_violation(validator, text) for text in data.to_pylist()], pa.string())


def _violation(validator: Any, text: str | None) -> str | None:
    if text is None:
        return None
    error = next(validator.iter_errors(json.loads(text)), None)
    return None if error is None else f"{error.json_path}: {error.validator}"
