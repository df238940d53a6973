"""What a worker counts over all batches."""

from __future__ import annotations

from collections import Counter

from babelqueue_spark.worker import Counts
from babelqueue_spark.worker.counts import MOST_URNS, OTHER


def test_batches_add_up() -> None:
    total = Counts()
    total.include(Counts(Counter({("urn:a", "acked", None): 2})))
    total.include(Counts(Counter({("urn:a", "acked", None): 1, (None, "dead_lettered", "poison"): 1})))
    assert total.rows() == [(None, "dead_lettered", "poison", 1), ("urn:a", "acked", None, 3)]


def test_invented_urns_do_not_grow_without_end() -> None:
    total = Counts()
    total.include(Counts(Counter({("urn:a", "acked", None): 1})))
    for batch in range(3):
        names = range(batch * MOST_URNS, (batch + 1) * MOST_URNS)
        total.include(Counts(Counter({(f"urn:invented:{n}", "dead_lettered", "unknown"): 1 for n in names})))
    total.include(Counts(Counter({("urn:a", "acked", None): 1})))
    assert total.read == 2 + 3 * MOST_URNS
    assert total.by["urn:a", "acked", None] == 2
    assert total.by[OTHER, "dead_lettered", "unknown"] == 2 * MOST_URNS + 1
    assert len({urn for urn, _, _ in total.by}) == MOST_URNS + 1
