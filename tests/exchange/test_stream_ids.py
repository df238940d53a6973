"""Ids of streams."""

from __future__ import annotations

from collections import Counter

import pytest

from babelqueue_spark.errors import OptionError
from babelqueue_spark.exchange.stream_ids import StreamId


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


def test_shards_are_even_and_stay() -> None:
    shards = Counter(StreamId("acme", "article", str(number)).shard(4) for number in range(4000))
    assert set(shards) == {0, 1, 2, 3}
    assert min(shards.values()) > 900
    assert StreamId.parse("acme:article:1").shard(256) == StreamId.parse("acme:article:1").shard(256)
