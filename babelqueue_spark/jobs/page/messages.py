"""Browse a queue, and say of each message what may be shown."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from babelqueue_spark.bindings import BaseBinding
from babelqueue_spark.connector.options import Options
from babelqueue_spark.connector.rows.reading import SCHEMA, to_rows
from babelqueue_spark.jobs.command import browse
from babelqueue_spark.schemas.masking import Mask
from babelqueue_spark.worker.dead_letters.by_name import names_of

MOST = 500
"""Messages that are read of a queue, from its head."""
_MOST_TEXT = 200
_MOST_DATA = 2_000
_MOST_BODY = 200_000


def first_messages(binding: BaseBinding, queue: str, options: Options) -> list[dict[str, Any]]:
    """Return the first messages of a queue, at most `MOST`, in its order, as JSON objects without bodies.

    `name` is what a message can be chosen by. `reason` says why it is a dead letter, or why it is refused.
    `data` has `***` for what the catalog marks; it is None where there is no catalog. Senders' texts are cut.
    """
    mask = None if options.catalog is None else Mask(options.catalog, native=options.form.native)
    return [_shown(name, row, mask) for name, row in _first_rows(binding, queue, options)]


def whole(binding: BaseBinding, queue: str, options: Options, name: str) -> dict[str, Any] | None:
    """Return a message as it is: `body`, `headers` and `error` as text; None where it has gone."""
    for each, row in _first_rows(binding, queue, options):
        if each == name:
            text = row["body"].decode("utf-8", "backslashreplace")
            return {
                "body": text[:_MOST_BODY],
                "is_cut": len(text) > _MOST_BODY,
                "headers": dict(row["headers"] or ()),
                "error": (row["dead_letter"] or {}).get("error"),
            }
    return None


def by_reason(messages: list[dict[str, Any]], most: int = MOST) -> dict[str, int]:
    """Reason → messages, most first; those of more than the `most` frequent ones as `(others)`."""
    found = dict(Counter(each["reason"] or "(none)" for each in messages).most_common(most))
    others = len(messages) - sum(found.values())
    return {**found, "(others)": others} if others else found


def _first_rows(binding: BaseBinding, queue: str, options: Options) -> Iterator[tuple[str, dict[str, Any]]]:
    for batch in browse(binding, queue, MOST):
        rows = to_rows(batch, queue, binding, SCHEMA, options)
        yield from zip(names_of(batch), rows.to_pylist(), strict=True)


def _shown(name: str, row: dict[str, Any], mask: Mask | None) -> dict[str, Any]:
    meta, block = row["meta"] or {}, row["dead_letter"] or {}
    return {
        "name": name,
        "job": _cut(row["job"]),
        "id": _cut(meta.get("id")),
        "trace_id": _cut(row["trace_id"]),
        "attempts": row["attempts"],
        "reason": _cut(block.get("reason") or row["error"]),
        "exception": _cut(block.get("exception")),
        "original_queue": _cut(block.get("original_queue")),
        "created_at": _text(meta.get("created_at")),
        "failed_at": _text(block.get("failed_at")),
        "bytes": len(row["body"]),
        "data": None if mask is None else (mask.row(row)["data"] or "")[:_MOST_DATA],
    }


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 1] + "…"


def _text(moment: datetime | None) -> str | None:
    return moment.isoformat(timespec="seconds") if moment else None
