"""The payload against a JSON Schema, as services register one per URN."""

import json
from typing import Any

import pyarrow as pa

from babelqueue_spark.packages import brought_by


def violations(data: Any, schema: dict[str, Any]) -> Any:
    """Return what is wrong with each payload, a string array; null = valid, or no payload.

    `data` is a string array of JSON texts, `schema` a JSON Schema (draft 7 where it names no other). The
    text names where and which rule, `$.order_id: type`, and shows no content. Needs the extra `schema`.
    Raises ValueError when `schema` is no JSON Schema.
    """
    with brought_by("schema", "a JSON Schema", "jsonschema"):
        from jsonschema import Draft7Validator, SchemaError, validators
    make = validators.validator_for(schema, default=Draft7Validator)
    try:
        make.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"not a JSON Schema: {error.message}") from None
    validator = make(schema)
    return pa.array([_violation(validator, text) for text in data.to_pylist()], pa.string())


def _violation(validator: Any, text: str | None) -> str | None:
    if text is None:
        return None
    error = next(validator.iter_errors(json.loads(text)), None)
    return None if error is None else f"{error.json_path}: {error.validator}"
