"""Short words for what the stream tests do again and again."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from babelqueue.codec import EnvelopeCodec

from babelqueue_spark.bindings import Binding, batches, binding_class, broker_of
from babelqueue_spark.connector.options import read_options
from babelqueue_spark.errors import JournalError

WAIT = 120


def envelope(number: int, queue: str = "orders", **changes: Any) -> bytes:
    """An envelope as the published SDK writes it, with some members replaced."""
    made = EnvelopeCodec.make("urn:babel:orders:created", {"order_id": number}, queue=queue)
    return str(EnvelopeCodec.encode({**made, **changes})).encode()


def outgoing(bodies: Iterable[bytes]) -> pa.RecordBatch:
    rows = list(bodies)
    return batches.outgoing(len(rows), body=rows)


def publish(url: str, queue: str, bodies: Iterable[bytes]) -> None:
    with read_options({"url": url, "queue": queue}).binding() as binding:
        binding.publish(queue, outgoing(bodies))


def backlog(url: str, queue: str, **options: str) -> int:
    """Messages that the broker could hand out now."""
    with read_options({"url": url, "queue": queue, **options}).binding() as binding:
        return binding.backlog(queue)


def left(url: str, queue: str, **options: str) -> int:
    """Messages that were not read; a log has none, as it has all of them whether they were read or not."""
    with read_options({"url": url, "queue": queue, **options}).binding() as binding:
        return binding.backlog(queue) if isinstance(binding, Binding) else 0


def short_claims(url: str) -> dict[str, str]:
    """Options with which the claims of a dead reader come back soon, and a reader on a busy machine is in time."""
    broker = broker_of(url)
    assert broker is not None
    if binding_class(broker).capabilities.visibility_timeout is None:
        return {}
    # SQS takes no acknowledge after the time, the others do as long as nobody else has claimed.
    return {"visibilityTimeout": "30s" if url.startswith("sqs") else "10s"}


def stream(spark: Any, url: str, queue: str, folder: Path, schema: str | None = None, **options: Any) -> Any:
    """A streaming DataFrame with its journal in `folder`."""
    given = {"url": url, "queue": queue, "journalLocation": str(folder / "journal"), **options}
    reader = spark.readStream.format("babelqueue").options(**given)
    return (reader.schema(schema) if schema else reader).load()


def run(
    frame: Any,
    folder: Path,
    each: Callable[[Any, int], None],
    *,
    checkpoint: str = "checkpoint",
    **trigger: Any,
) -> Any:
    """Run a query with foreachBatch to its end (`availableNow` unless another trigger is named)."""
    query = (
        frame.writeStream.foreachBatch(each)
        .option("checkpointLocation", str(folder / checkpoint))
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )
    if not trigger:
        assert query.awaitTermination(WAIT), "the query did not end"
        if query.exception():
            raise query.exception()
    return query


def started_again(query: Any, start: Callable[[], Any]) -> Any:
    """The next query, where Spark could not start the last one."""
    assert not query.isActive, "the query did not end"
    if not could_not_start(query.exception()):
        raise query.exception()
    return start()


def could_not_start(error: Exception) -> bool:
    """Whether a query ended because Spark gives a Python process only ten seconds to start."""
    return "Python worker failed to connect back" in str(error)


def in_time(attempt: Callable[[], Any], lease: float) -> Any:
    """What an attempt yields that must succeed.

    It is repeated, when its claims have lapsed, while a busy machine does not journal them within their `lease`.
    """
    deadline = time.monotonic() + WAIT
    while True:
        try:
            return attempt()
        except JournalError as error:
            if not re.search("in time|claims lapsed", str(error)) or time.monotonic() > deadline:
                raise
        time.sleep(lease)


def drain(spark: Any, url: str, queue: str, folder: Path, **options: Any) -> list[list[Any]]:
    """The rows of each batch of an `availableNow` query."""
    batches: list[list[Any]] = []
    run(stream(spark, url, queue, folder, **options), folder, lambda df, _: batches.append(df.collect()))
    return [batch for batch in batches if batch]


def numbers(rows: Iterable[Any]) -> list[int]:
    return [json.loads(row.data)["order_id"] for row in rows]
