"""Ids of streams."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from typing import Any

import pytest

from babelqueue_spark.errors import OptionError
from babelqueue_spark.exchange import StreamId, stream_shard


@pytest.mark.parametrize(
    "text", ["acme:article", "acme:article:2f1c", "acme:poll-votes:2026.11:a7", "a-1:B_2"]
)
def test_an_id_is_its_text(text: str) -> None:
    assert str(StreamId.parse(text)) == text


def test_the_parts_of_an_id() -> None:
    assert StreamId.parse("acme:votes:2026:a7") == StreamId("acme", "votes", "2026", "a7")
    assert StreamId.parse("acme:votes").partition is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "acme",
        "acme:",
        ":article",
        "Acme:article",
        "acme:a:b:c:d",
        "acme:a b",
        "acme:a::b",
        "acme:é",
        "acme:" + "x" * 251,
        "acme:article\n",
    ],
)
def test_what_is_not_an_id(text: str) -> None:
    with pytest.raises(OptionError, match="is not a stream: use vendor:topic"):
        StreamId.parse(text)


def test_a_name_without_colons_and_dots() -> None:
    assert StreamId.parse("acme:poll.votes:7").topic_name == "acme__poll--votes__7"


def test_a_long_name_of_a_topic_ends_with_a_digest() -> None:
    long = [StreamId("acme", "x." * 120, last).topic_name for last in ("1", "2")]
    assert [len(name) for name in long] == [249, 249]
    assert long[0] != long[1]
    assert all(re.fullmatch("[a-z0-9_-]+", name) for name in long)


def test_shards_are_even_and_stay() -> None:
    shards = Counter(StreamId("acme", "article", str(number)).shard(4) for number in range(4000))
    assert set(shards) == {"00", "01", "02", "03"}
    assert min(shards.values()) > 900
    assert StreamId.parse("acme:article:1").shard() == "3b"


@pytest.mark.parametrize("shards", [0, -1, 257])
def test_two_hex_digits_name_a_shard(shards: int) -> None:
    for give in (StreamId("acme", "article").shard, partial(stream_shard, "stream")):
        with pytest.raises(OptionError, match="takes 1 to 256"):
            give(shards)


@pytest.mark.spark
@pytest.mark.parametrize("shards", [1, 16, 256])
def test_a_column_of_shards_is_that_of_the_ids(spark: Any, shards: int) -> None:
    ids = [StreamId("acme", "article", str(number)) for number in range(100)]
    frame = spark.createDataFrame([(str(each),) for each in ids], "stream STRING")
    found = frame.select("stream", stream_shard("stream", shards).alias("shard")).collect()
    assert {row.stream: row.shard for row in found} == {str(each): each.shard(shards) for each in ids}
