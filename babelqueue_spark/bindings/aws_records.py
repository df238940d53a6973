"""Records that Kinesis and Firehose take in batches, of which they may refuse a part."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from babelqueue_spark.bindings.aws import AwsClient, reason
from babelqueue_spark.bindings.batches import chunks
from babelqueue_spark.errors import BrokerFullError, MessageTooLargeError

MOST = 500
"""Records of one request."""
_ATTEMPTS = 8
"""Times a refused record is sent."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0

Answer = Sequence[Mapping[str, Any]]
"""What became of each record of a request, in order; with an `ErrorCode` where it was refused."""


class Record(NamedTuple):
    """A record to send: its entry in the request, its bytes as the service counts them, and its key."""

    entry: Mapping[str, Any]
    size: int
    key: str | None = None


def check_sizes(client: AwsClient, queue: str, records: Sequence[Record], max_bytes: int) -> None:
    """Raise `MessageTooLargeError` for the first record that is larger than the service takes."""
    for row, record in enumerate(records):
        if record.size > max_bytes:
            raise client.error(
                f"row {row} has {record.size:,} bytes with its key, and the limit is {max_bytes:,}: keep "
                "large data elsewhere and send its address",
                queue,
                MessageTooLargeError,
            )


def send(
    client: AwsClient,
    queue: str,
    records: Sequence[Record],
    max_bytes: int,
    put: Callable[[list[Mapping[str, Any]]], Answer],
) -> None:
    """Send all records; `BrokerFullError` if some are refused again and again.

    A request has no two records of one key, and the next one follows when all of its records are confirmed.
    So the records of a key stay in order, though a service may refuse any record of a request.
    """
    for wave in _waves(records):
        for batch in chunks(wave, attrgetter("size"), MOST, max_bytes):
            _send_batch(client, queue, [record.entry for record in batch], put)


def _send_batch(
    client: AwsClient,
    queue: str,
    batch: list[Mapping[str, Any]],
    put: Callable[[list[Mapping[str, Any]]], Answer],
) -> None:
    for pause in pauses():
        answer = put(batch)
        refused = [
            (entry, result) for entry, result in zip(batch, answer, strict=True) if result.get("ErrorCode")
        ]
        if not refused:
            return
        batch = [entry for entry, _ in refused]
        time.sleep(pause)
    reasons = {
        reason({"Code": result["ErrorCode"], "Message": result.get("ErrorMessage")}) for _, result in refused
    }
    raise client.error(
        f"{len(refused)} messages were refused {_ATTEMPTS} times: {', '.join(sorted(reasons))}: send less at "
        "once, or give it more capacity",
        queue,
        BrokerFullError,
    )


def pauses() -> Iterator[float]:
    """Seconds to wait after each attempt, longer each time."""
    return (min(_FIRST_PAUSE * 2**attempt, _LONGEST_PAUSE) for attempt in range(_ATTEMPTS))


def _waves(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Return the records in groups, one after the other: of each key, one in each group."""
    waves: defaultdict[int, list[Record]] = defaultdict(list)
    sent: defaultdict[str, int] = defaultdict(int)
    for record in records:
        wave = 0
        if record.key is not None:
            wave = sent[record.key]
            sent[record.key] += 1
        waves[wave].append(record)
    return (waves[wave] for wave in sorted(waves))
