"""Requests to Kinesis: shards, pages of their records, and records to put."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

from babelqueue_spark.bindings.advice import Advice, missing
from babelqueue_spark.bindings.aws import BUSY, AwsClient, AwsOptions, Refusals, throttled
from babelqueue_spark.bindings.aws_records import Answer, Record, pauses, send
from babelqueue_spark.bindings.options import Parsers, whole
from babelqueue_spark.errors import BrokerError, BrokerFullError, BrokerUnreachableError, QueueNotFoundError

LARGEST_RECORD = 1 << 20
"""Bytes of a record with its partition key."""
_LARGEST_REQUEST = 5 << 20
PAGE = 10_000
"""Most records of one answer."""
_CREATION_SECONDS = 120.0
_EMPTY_PAGES = 20
"""So many empty answers in a row where a record should be: Kinesis does not find it any more."""


class UnknownPositionError(BrokerError):
    """Kinesis takes no such sequence number: its record is gone, or was never there."""


class IteratorExpiredError(BrokerError):
    """Kinesis has forgotten where a reader was, as it does after five minutes."""


class UnderwayError(BrokerError):
    """Another writer creates the same stream."""


@dataclass(frozen=True, kw_only=True)
class KinesisOptions(AwsOptions):
    """What the binding makes of its configuration.

    Attributes:
        shard_count: shards of a stream that a write creates; None = on demand.
    """

    broker = "kinesis"
    title = "Kinesis"
    own: ClassVar[Parsers] = {"shard_count": whole(1, 10_000)}

    shard_count: int | None = None


@dataclass(frozen=True)
class Shard:
    """A shard of a stream: its number is what its id ends with, and `parents` are numbers too."""

    id: str
    number: int
    parents: tuple[int, ...]
    closed: bool


@dataclass(frozen=True)
class Page:
    """One answer of Kinesis.

    Attributes:
        behind: milliseconds to the end of the shard.
        last: the shard is closed, and has no more records.
    """

    records: Sequence[Mapping[str, Any]]
    behind: int
    last: bool

    @property
    def sequence_numbers(self) -> list[int]:
        return [int(record["SequenceNumber"]) for record in self.records]


class KinesisClient(AwsClient):
    """A botocore client, made at the first request in the process that needs it."""

    noun = "stream"
    _options: KinesisOptions
    refusals: ClassVar[Refusals] = {
        "ResourceNotFound": missing("it does not exist: create it, or check name, account and region"),
        "ExpiredIterator": Advice("its reader was away too long", IteratorExpiredError),
        "InvalidArgument": Advice("it does not know such a record", UnknownPositionError),
        "ResourceInUse": Advice("it is being created or changed: wait until it is active", UnderwayError),
        f"{BUSY}|ThroughputExceeded|LimitExceeded": throttled(
            "read it by fewer readers, or give it more shards"
        ),
    }

    def named(self, parameters: Mapping[str, Any]) -> str:
        return str(parameters.get("StreamName", ""))

    def shards(self, stream: str) -> list[Shard]:
        """Return all shards that Kinesis still has, parents first; none where there is no such stream."""
        found: list[Mapping[str, Any]] = []
        request: dict[str, Any] = {"StreamName": stream}
        with suppress(QueueNotFoundError):
            while request:
                answer = self._patiently("list_shards", stream, **request)
                found += answer["Shards"]
                request = {"NextToken": answer["NextToken"]} if answer.get("NextToken") else {}
        return sorted(map(_shard, found), key=lambda shard: shard.number)

    def pages(
        self, stream: str, shard: str, *, at: int = 0, since: float | None = None, limit: int = PAGE
    ) -> Iterator[Page]:
        """Answers from the record `at` on, itself included; or since a time in seconds; else from the oldest.

        They continue at the end of an open shard: the caller stops. Where the record is not found any more,
        from the oldest that is there.
        """
        empty = seen = 0
        iterator: str | None = self._iterator(stream, shard, at, since)
        while iterator:
            try:
                answer = self._patiently("get_records", stream, ShardIterator=iterator, Limit=limit)
            except IteratorExpiredError:
                iterator = self._iterator(stream, shard, seen or at, since, behind=bool(seen))
                continue
            iterator = answer.get("NextShardIterator")
            page = Page(answer["Records"], answer.get("MillisBehindLatest") or 0, iterator is None)
            seen = max([seen, *page.sequence_numbers])
            empty = 0 if page.records else empty + 1
            if at and empty == _EMPTY_PAGES and page.behind:
                iterator, at = self._iterator(stream, shard, 0, None), 0
                continue
            at = 0 if page.records else at
            yield page

    def put(self, stream: str, records: Sequence[Record]) -> None:
        """Put all records in order of each key; creates the stream where it is missing."""

        def put(entries: list[Mapping[str, Any]]) -> Answer:
            answer = self._patiently("put_records", stream, StreamName=stream, Records=entries)
            results: Answer = answer["Records"]
            return results

        try:
            send(self, stream, records, _LARGEST_REQUEST, put)
        except QueueNotFoundError:
            self._create(stream)
            send(self, stream, records, _LARGEST_REQUEST, put)

    def _iterator(
        self, stream: str, shard: str, at: int, since: float | None, *, behind: bool = False
    ) -> str:
        """Open an iterator at a record or behind it, or at a time; else at the oldest record."""
        position: dict[str, Any] = {"ShardIteratorType": "TRIM_HORIZON"}
        if at:
            kind = "AFTER_SEQUENCE_NUMBER" if behind else "AT_SEQUENCE_NUMBER"
            position = {"ShardIteratorType": kind, "StartingSequenceNumber": str(at)}
        elif since is not None:
            moment = datetime.fromtimestamp(since, UTC)
            position = {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": moment}
        try:
            answer = self._patiently(
                "get_shard_iterator", stream, StreamName=stream, ShardId=shard, **position
            )
        except UnknownPositionError:
            if "StartingSequenceNumber" not in position and "Timestamp" not in position:
                raise
            return self._iterator(stream, shard, 0, None)
        return str(answer["ShardIterator"])

    def _create(self, stream: str) -> None:
        count = self._options.shard_count
        shards = {"ShardCount": count} if count else {"StreamModeDetails": {"StreamMode": "ON_DEMAND"}}
        with suppress(UnderwayError):
            self.call("create_stream", StreamName=stream, **shards)
        deadline = time.monotonic() + _CREATION_SECONDS
        while time.monotonic() < deadline:
            answer = self._patiently("describe_stream_summary", stream, StreamName=stream)
            if answer["StreamDescriptionSummary"]["StreamStatus"] == "ACTIVE":
                return
            time.sleep(1)
        raise self.error("it was created, but is not active yet: retry later", stream, BrokerUnreachableError)

    def _patiently(self, operation: str, stream: str, **parameters: Any) -> dict[str, Any]:
        """Return the answer to one request, which is repeated while Kinesis is asked too often."""
        for pause in pauses():
            try:
                with self._explained(stream):
                    answer: dict[str, Any] = getattr(self.connected(), operation)(**parameters)
                    return answer
            except BrokerFullError as error:
                refused = error
                time.sleep(pause)
        raise refused


def _shard(described: Mapping[str, Any]) -> Shard:
    parents = [described.get(name) for name in ("ParentShardId", "AdjacentParentShardId")]
    return Shard(
        described["ShardId"],
        _number(described["ShardId"]),
        tuple(_number(parent) for parent in parents if parent),
        "EndingSequenceNumber" in described["SequenceNumberRange"],
    )


def _number(shard: str) -> int:
    return int(shard.rpartition("-")[2])
