"""Browse a queue, and say of each message what may be shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from babelqueue_spark.bindings import BaseBinding
from babelqueue_spark.connector.options import Options
from babelqueue_spark.connector.rows.reading import SCHEMA, to_rows
from babelqueue_spark.schemas.masking import Mask
from babelqueue_spark.worker.chosen import names_of

MOST = 500
"""Messages that are read of a queue, from its head."""
_MOST_TEXT = 200
_MOST_DATA = 2_000
_MOST_BODY = 200_000


@dataclass(frozen=True)
class Shown:
    """A message without its body. Texts of senders are cut.

    Attributes:
        name: by which it can be chosen, see `names_of`.
        urn, id, trace_id, attempts, original_queue, exception: of its envelope and its dead-letter block.
        reason: why it is a dead letter, or else why it is refused.
        created_at, failed_at: ISO 8601.
        bytes: of its body.
        data: with `***` for what a catalog marks; None where there is no catalog.
    """

    name: str
    urn: str | None
    id: str | None
    trace_id: str | None
    attempts: int | None
    reason: str | None
    exception: str | None
    original_queue: str | None
    created_at: str | None
    failed_at: str | None
    bytes: int
    data: str | None

    def as_dict(self) -> dict[str, Any]:
        """Return the message as a JSON object."""
        return asdict(self)


def first_messages(binding: BaseBinding, queue: str, options: Options) -> list[Shown]:
    """Return the first messages of a queue, at most `MOST`, in its order."""
    mask = None if options.catalog is None else Mask(options.catalog)
    return [_shown(name, row, mask) for name, row in _first_rows(binding, queue, options)]


def whole(binding: BaseBinding, queue: str, options: Options, name: str) -> dict[str, Any] | None:
    """Return a message as it is: `body`, `headers` and `error` as text; None where it has gone."""
    for its, row in _first_rows(binding, queue, options):
        if its == name:
            text = row["body"].decode("utf-8", "backslashreplace")
            return {
                "body": text[:_MOST_BODY],
                "is_cut": len(text) > _MOST_BODY,
                "headers": dict(row["headers"] or ()),
                "error": (row["dead_letter"] or {}).get("error"),
            }
    return None


def by_reason(messages: list[Shown], most: int = MOST) -> dict[str, int]:
    """Reason → messages, most first; those of more than the `most` frequent ones as `(others)`."""
    found = dict(Counter(each.reason or "(none)" for each in messages).most_common(most))
    others = len(messages) - sum(found.values())
    return {**found, "(others)": others} if others else found


@contextmanager
def browsing(binding: BaseBinding, queue: str) -> Iterator[Iterator[pa.RecordBatch]]:
    """Browse a queue; what that holds is released at the end, not when somebody collects the iterator."""
    batches = binding.browse(queue)
    try:
        yield batches
    finally:
        if isinstance(batches, Generator):
            batches.close()


def _first_rows(binding: BaseBinding, queue: str, options: Options) -> Iterator[tuple[str, dict[str, Any]]]:
    left = MOST
    with browsing(binding, queue) as batches:
        for batch in batches:
            part = batch.slice(0, left)
            rows = to_rows(part, queue, binding, SCHEMA, options.allow_empty_list_data)
            yield from zip(names_of(part), rows.to_pylist(), strict=True)
            left -= part.num_rows
            if not left:
                return


def _shown(name: str, row: dict[str, Any], mask: Mask | None) -> Shown:
    meta, block = row["meta"] or {}, row["dead_letter"] or {}
    return Shown(
        name=name,
        urn=_cut(row["job"]),
        id=_cut(meta.get("id")),
        trace_id=_cut(row["trace_id"]),
        attempts=row["attempts"],
        reason=_cut(block.get("reason") or row["error"]),
        exception=_cut(block.get("exception")),
        original_queue=_cut(block.get("original_queue")),
        created_at=_text(meta.get("created_at")),
        failed_at=_text(block.get("failed_at")),
        bytes=len(row["body"]),
        data=None if mask is None else (mask.row(row)["data"] or "")[:_MOST_DATA],
    )


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 1] + "…"


def _text(moment: datetime | None) -> str | None:
    return moment.isoformat(timespec="seconds") if moment else None
