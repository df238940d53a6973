"""Redrive or drop dead letters that somebody has chosen one by one; no Spark session is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import pyarrow as pa

from babelqueue_spark.bindings import Binding
from babelqueue_spark.bindings.batches import names_by_content
from babelqueue_spark.connector.options import read_options
from babelqueue_spark.worker.dead_letters.moves import Claims, Plan, Redriven, Selection, move, moving_log


def names_of(deliveries: pa.RecordBatch) -> list[str]:
    """Return the names by which messages are chosen: digests of id and body.

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
    given = read_options({**options, "queue": queue})
    with given.queue_binding() as binding:
        there = _there(binding, queue, chosen)
    result = move(given, Plan(queue, _Names(there), to))
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
    dropped = 0
    with given.queue_binding() as binding, moving_log(given, binding) as lines:
        selection = _Names(_there(binding, queue, chosen))
        if selection.is_done():
            return 0
        with Claims(binding, queue, lines) as claims:
            for claim in claims:
                dropped += claim.acknowledge(sorted(selection.rows(claim.deliveries, claim.deliveries)))
                if selection.is_done():
                    break
    return dropped


def _there(binding: Binding, queue: str, chosen: Iterable[str]) -> Counter[str]:
    """Return the chosen names that are in the queue, so that none is searched for in vain, claim after claim.

    All of them where a browse claims messages itself, or did not see all that waits.
    """
    wanted = Counter(chosen)
    if binding.capabilities.browse != "exact":
        return wanted
    selection, seen = _Names(wanted), 0
    for deliveries in binding.browse(queue):
        selection.rows(deliveries, deliveries)
        seen += deliveries.num_rows
        if selection.is_done():
            return wanted
    return wanted if seen < binding.backlog(queue) else wanted - selection.left


class _Names(Selection):
    """Selects as many messages of each name as were chosen."""

    def __init__(self, names: Counter[str]) -> None:
        self.left = +names

    def rows(self, deliveries: pa.RecordBatch, columns: pa.RecordBatch) -> set[int]:
        del columns
        found = set()
        for row, name in enumerate(names_of(deliveries)):
            if self.left[name] > 0:
                self.left[name] -= 1
                found.add(row)
        self.left = +self.left
        return found

    def is_done(self) -> bool:
        return not self.left
