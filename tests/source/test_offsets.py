"""What offsets of a log do with one another."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from babelqueue_spark.connector.source.offsets import PartitionOffsets
from tests.examples import examples

OFFSETS = st.builds(
    PartitionOffsets,
    st.dictionaries(st.sampled_from("abc"), st.dictionaries(st.integers(0, 3), st.integers(0, 10_000))),
)


def offsets(**queues: dict[int, int]) -> PartitionOffsets:
    return PartitionOffsets(queues)


def test_sizes_count_from_zero_in_unknown_partitions() -> None:
    start, end = offsets(a={0: 5}), offsets(a={0: 7, 1: 3}, b={0: 4})
    assert start.sizes_to(end) == {"a": 5, "b": 4}
    assert start.size_to(end) == 9
    assert end.size_to(start) == 0


def test_a_limit_is_shared_in_proportion() -> None:
    end = offsets(a={0: 100, 1: 300}, b={0: 50})
    assert end.limited(offsets(b={0: 50}), 40) == offsets(a={0: 10, 1: 30}, b={0: 50})


def test_a_cap_drops_what_it_lacks() -> None:
    end = offsets(a={0: 5, 1: 9, 2: 9}, b={0: 1})
    assert end.capped_at(offsets(a={0: 7, 1: 8}, c={0: 1})) == offsets(a={0: 5, 1: 8})


def test_offsets_never_go_back() -> None:
    assert offsets(a={0: 5}).at_least(offsets(a={0: 7, 1: 2})) == offsets(a={0: 7, 1: 2})


def test_missing_partitions_are_added_and_others_kept() -> None:
    known = offsets(a={0: 5}, b={0: 1})
    assert known.queues_behind(offsets(a={0: 9, 1: 9}, c={0: 1})) == ["a", "c"]
    assert known.with_missing(offsets(a={0: 0, 1: 3})) == offsets(a={0: 5, 1: 3}, b={0: 1})


@examples(100)
@given(OFFSETS)
def test_json_has_text_for_keys_and_comes_back(made: PartitionOffsets) -> None:
    texts: Any = made.to_json()
    assert all(isinstance(number, str) for partitions in texts.values() for number in partitions)
    assert PartitionOffsets.from_json(texts) == made


@examples(100)
@given(OFFSETS, OFFSETS, st.integers(1, 5_000))
def test_a_limit_holds_but_for_one_message_a_partition(
    start: PartitionOffsets, end: PartitionOffsets, messages: int
) -> None:
    limited = end.limited(start, messages)
    partitions = sum(map(len, end.queues.values()))
    assert start.size_to(limited) <= messages + partitions
    assert limited.at_least(end) == end
    assert (start.size_to(limited) > 0) == (start.size_to(end) > 0)
