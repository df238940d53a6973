"""Ids of streams of events: `vendor:topic[:partition[:sub-partition]]`."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Self

from babelqueue_spark.errors import OptionError

_ID = re.compile(r"([a-z0-9-]+):([\w.-]+)(?::([\w.-]+)(?::([\w.-]+))?)?", re.ASCII)
_LONGEST = 255


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
        """The id where colons and dots are not allowed, as in names of topics: `acme__poll--votes`."""
        return str(self).replace(":", "__").replace(".", "--")

    def shard(self, shards: int) -> int:
        """Return the number of a shard, from 0, that is the same in every process."""
        digest = hashlib.blake2b(str(self).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % shards
