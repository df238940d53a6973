"""Ids of streams of events: `vendor:topic[:partition[:sub-partition]]`."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Self

from babelqueue_spark.errors import OptionError

_ID = re.compile(r"([a-z0-9-]+):([\w.-]+)(?::([\w.-]+)(?::([\w.-]+))?)?", re.ASCII)
_LONGEST = 255
_LONGEST_TOPIC = 249
"""Characters of a topic of Kafka; SNS takes 256."""
MOST_SHARDS = 256


@dataclass(frozen=True, order=True)
class StreamId:
    """Names a stream, such as `acme:article:2f1c` or `acme:poll-votes:2026-11:a7`.

    Attributes:
        vendor: lower-case letters, digits and `-`.
        topic, partition, sub_partition: letters, digits, `_`, `.` and `-`; the last two may be missing.
    """

    vendor: str
    topic: str
    partition: str | None = None
    sub_partition: str | None = None

    def __post_init__(self) -> None:
        text = str(self)
        if len(text) > _LONGEST or not _ID.fullmatch(text) or (self.sub_partition and not self.partition):
            raise OptionError(
                f"'{text[:_LONGEST]}' is not a stream: use vendor:topic[:partition[:sub-partition]], "
                f"of letters, digits, '_', '.' and '-', {_LONGEST} characters at most"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an id from its text.

        Raises:
            OptionError: the text is not the id of a stream.
        """
        vendor, _, rest = text.partition(":")
        topic, *partitions = rest.split(":", 2)
        return cls(vendor, topic, *partitions)

    def __str__(self) -> str:
        parts = (self.vendor, self.topic, self.partition, self.sub_partition)
        return ":".join(part for part in parts if part is not None)

    @property
    def topic_name(self) -> str:
        """The id where colons and dots are not allowed, as in names of topics: `acme__poll--votes`.

        A name of more than 249 characters ends with a digest of the id instead of its last ones.
        """
        name = str(self).replace(":", "__").replace(".", "--")
        digest = _md5(str(self))[:16]
        return name if len(name) <= _LONGEST_TOPIC else f"{name[: _LONGEST_TOPIC - 17]}-{digest}"

    def shard(self, shards: int = MOST_SHARDS) -> str:
        """Return the shard of the stream, `00` to `ff` at most, as `stream_shard` does.

        Raises:
            OptionError: there are fewer than one or more than 256 shards.
        """
        return f"{int(_md5(str(self))[:8], 16) % checked_shards(shards):02x}"


def checked_shards(shards: int) -> int:
    """Return the number of shards; `OptionError` where two hex digits cannot name them."""
    if not 1 <= shards <= MOST_SHARDS:
        raise OptionError(f"shards is {shards}, but takes 1 to {MOST_SHARDS}")
    return shards


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
