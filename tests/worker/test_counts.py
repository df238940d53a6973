"""What a worker counts over all batches."""

from __future__ import annotations

from collections import Counter

from babelqueue_spark.worker import Counts
from babelqueue_spark.worker.counts import MOST_COUNTS, OTHER


def test_batches_add_up() -> None:
    total = Counts()
    total.include(Counts(Counter({("urn:a", "acked", None): 2})))
    total.include(Counts(Counter({("urn:a", "acked", None): 1, (None, "dead_lettered", "poison"): 1})))
    assert total.rows() == [(None, "dead_lettered", "poison", 1), ("urn:a", "acked", None, 3)]


def test_invented_urns_and_reasons_do_not_grow_without_end() -> None:
    total = Counts()
    total.include(Counts(Counter({("urn:a", "acked", None): 1})))
    for batch in range(3):
        names = range(batch * MOST_COUNTS, (batch + 1) * MOST_COUNTS)
        total.include(Counts(Counter({(f"urn:{n}", "dead_lettered", "unknown_urn"): 1 for n in names})))
        total.include(Counts(Counter({("urn:a", "dead_lettered", f"bad order {n}"): 1 for n in names})))
    total.include(Counts(Counter({("urn:a", "acked", None): 1, (None, "dropped", "duplicate"): 1})))
    assert total.read == 3 + 6 * MOST_COUNTS
    assert total.by["urn:a", "acked", None] == 2
    assert total.by[OTHER, "dead_lettered", "unknown_urn"] == 2 * MOST_COUNTS + 1
    assert total.by[OTHER, "dead_lettered", OTHER] == 3 * MOST_COUNTS
    assert total.duplicates == 1
    assert len(total.by) == MOST_COUNTS + 3
