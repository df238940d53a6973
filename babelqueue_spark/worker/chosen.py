"""Redrive or drop dead letters that somebody has chosen one by one; no Spark session is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import pyarrow as pa

from babelqueue_spark.bindings.batches import names_by_content
from babelqueue_spark.options import read_options
from babelqueue_spark.worker.moving import Plan, Redriven, held, move


def names_of(deliveries: pa.RecordBatch) -> list[str]:
    """The names by which messages are chosen: digests of id and body, which browsing and claiming share.

    Equal messages share a name: who chooses a name twice chooses two of them.
    """
    return names_by_content(deliveries)


def redrive_chosen(
    options: Mapping[str, str], queue: str, chosen: Iterable[str], *, to: str | None = None
) -> Redriven:
    """Move the dead letters of these names, as `redrive` does, and no others.

    Args:
        options: of the connector's reads, by name.
        queue: the dead-letter queue.
        chosen: from `names_of`; a name that is not in the queue any more moves nothing.
        to: where they go; by default `dead_letter.original_queue`, or else `meta.queue`.

    Raises:
        OptionError, BrokerError: as `redrive` does.
    """
    selection = _Selection(chosen)
    plan = Plan(queue, selection, to, done=lambda: not selection.left)
    result = move(read_options({**options, "queue": queue}), plan)
    del result.kept["not selected"]
    return result


def drop_chosen(options: Mapping[str, str], queue: str, chosen: Iterable[str]) -> int:
    """Acknowledge the messages of these names, and release all others; returns how many are gone.

    Args:
        options: of the connector's reads, by name.
        queue: the dead-letter queue.
        chosen: from `names_of`; a name that is not in the queue any more drops nothing.

    Raises:
        OptionError: claims would lapse before the end.
        BrokerError: the broker is out of reach; what was dropped before stays so.
    """
    given = read_options({**options, "queue": queue})
    selection, dropped = _Selection(chosen), 0
    with given.queue_binding() as binding, held(binding, queue) as batches:
        for batch, stay in batches:
            rows = selection(batch, batch)
            gone = binding.acknowledge(queue, batch.take(pa.array(sorted(rows), pa.int64())))
            stay -= rows
            dropped += gone.true_count
            if not selection.left:
                break
    return dropped


class _Selection:
    """Selects as many messages of each name as were chosen."""

    def __init__(self, names: Iterable[str]) -> None:
        self.left = Counter(names)

    def __call__(self, deliveries: pa.RecordBatch, rows: pa.RecordBatch) -> set[int]:
        del rows
        found = set()
        for row, name in enumerate(names_of(deliveries)):
            if self.left[name] > 0:
                self.left[name] -= 1
                found.add(row)
        self.left = +self.left
        return found
