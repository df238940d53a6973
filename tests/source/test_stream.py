"""Reading queues as a stream, on each broker."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from babelqueue.codec import EnvelopeCodec

from babelqueue_spark.journal import Journal
from tests.streams import WAIT, backlog, drain, envelope, numbers, publish, run, stream

pytestmark = pytest.mark.spark


def test_columns_hold_what_the_sdk_wrote(spark: Any, url: str, queue: str, tmp_path: Path) -> None:
    bodies = [envelope(n, queue, attempts=n) for n in range(3)]
    publish(url, queue, bodies)
    [rows] = drain(spark, url, queue, tmp_path)
    for row, body in zip(rows, bodies, strict=True):
        sent = EnvelopeCodec.decode(body.decode())
        assert (row.job, row.trace_id, row.attempts) == (sent["job"], sent["trace_id"], sent["attempts"])
        assert json.loads(row.data) == sent["data"]
        assert (row.meta.id, row.meta.queue, row.meta.lang) == tuple(
            sent["meta"][name] for name in ("id", "queue", "lang")
        )
        assert row.meta.created_at.timestamp() == sent["meta"]["created_at"] / 1000
        assert bytes(row.body) == body
        assert (row.queue, row.error, row.dead_letter) == (queue, None, None)


def test_every_action_in_foreach_batch_sees_the_same_rows(
    spark: Any, url: str, queue: str, tmp_path: Path
) -> None:
    publish(url, queue, (envelope(n) for n in range(2500)))
    seen: list[Any] = []

    def each(frame: Any, _: int) -> None:
        seen.append((frame.count(), frame.count(), sorted(bytes(row.body) for row in frame.collect())))

    run(stream(spark, url, queue, tmp_path), tmp_path, each)
    [(first, second, bodies)] = [found for found in seen if found[0]]
    assert first == second == len(bodies) == len(set(bodies)) == 2500
    assert backlog(url, queue) == 0


def test_available_now_drains_what_was_there_and_stops(
    spark: Any, url: str, queue: str, tmp_path: Path
) -> None:
    publish(url, queue, (envelope(n) for n in range(300)))
    seen: list[int] = []

    def each(frame: Any, _: int) -> None:
        rows = frame.collect()
        seen.extend(numbers(rows))
        if rows:
            publish(url, queue, [envelope(1000 + len(seen))])

    run(stream(spark, url, queue, tmp_path), tmp_path, each)
    assert sorted(seen) == list(range(300))
    assert backlog(url, queue) >= 1


def test_available_now_drains_in_bounded_batches(
    spark: Any, url: str, queue: str, tmp_path: Path, admission_control: bool
) -> None:
    publish(url, queue, (envelope(n) for n in range(250)))
    batches = drain(spark, url, queue, tmp_path, maxMessagesPerTrigger=100)
    if not admission_control:
        while backlog(url, queue):
            batches += drain(spark, url, queue, tmp_path, maxMessagesPerTrigger=100)
    assert [len(batch) for batch in batches] == [100, 100, 50]
    assert numbers(row for batch in batches for row in batch) == list(range(250))


def test_bytes_bound_a_batch(spark: Any, url: str, queue: str, tmp_path: Path) -> None:
    publish(url, queue, (envelope(n, data={"order_id": n, "pad": "x" * 10_000}) for n in range(50)))
    batches: list[list[Any]] = []
    frame = stream(spark, url, queue, tmp_path, maxBytesPerTrigger="105k", maxMessagesPerTrigger=1000)
    query = run(frame, tmp_path, lambda df, _: batches.append(df.collect()), processingTime="0 seconds")
    _await(lambda: sum(map(len, batches)) == 50, query)
    query.stop()
    assert numbers(row for batch in batches for row in batch) == list(range(50))
    assert max(map(len, batches)) <= 11


def test_several_queues_and_partitions(spark: Any, url: str, queue: str, tmp_path: Path) -> None:
    publish(url, f"{queue}-a", (envelope(n) for n in range(5000)))
    publish(url, f"{queue}-b", (envelope(n) for n in range(7)))
    partitions: list[int] = []
    rows: list[Any] = []

    def each(frame: Any, _: int) -> None:
        partitions.append(frame.rdd.getNumPartitions())
        rows.extend(frame.select("queue", "data").collect())

    run(stream(spark, url, f"{queue}-a,{queue}-b", tmp_path, numPartitions=2), tmp_path, each)
    assert partitions[0] == 2
    for name, count in ((f"{queue}-a", 5000), (f"{queue}-b", 7)):
        assert sorted(numbers(row for row in rows if row.queue == name)) == list(range(count))


def test_many_queues_are_read_by_as_many_tasks_as_were_asked_for(
    spark: Any, url: str, queue: str, tmp_path: Path
) -> None:
    names = [f"{queue}-{number}" for number in range(30)]
    for number, name in enumerate(names):
        publish(url, name, [envelope(number)] * 40)
    [rows] = drain(spark, url, ",".join(names), tmp_path, numPartitions=2, journalRetention="1h")
    assert Counter((row.queue, json.loads(row.data)["order_id"]) for row in rows) == {
        (name, number): 40 for number, name in enumerate(names)
    }
    assert len(list(tmp_path.glob("journal/batches/*/*.arrow"))) == 2


def test_typed_data_and_a_subset_of_columns(spark: Any, url: str, queue: str, tmp_path: Path) -> None:
    publish(
        url,
        queue,
        [
            envelope(1, data={"order_id": 1, "amount": 1.5, "tags": ["a"], "extra": {}}),
            envelope(2, data={"order_id": "two", "tags": None}),
        ],
    )
    schema = "data STRUCT<order_id BIGINT, amount DOUBLE, tags ARRAY<STRING>>, job STRING, body BINARY"
    [rows] = drain(spark, url, queue, tmp_path, schema=schema)
    assert rows[0].asDict(recursive=True)["data"] == {"order_id": 1, "amount": 1.5, "tags": ["a"]}
    assert rows[1].asDict(recursive=True)["data"] == {"order_id": None, "amount": None, "tags": None}
    assert b'"two"' in bytes(rows[1].body)


def test_progress_shows_the_backlog(spark: Any, url: str, queue: str, tmp_path: Path) -> None:
    publish(url, queue, (envelope(n) for n in range(42)))
    query = run(stream(spark, url, queue, tmp_path), tmp_path, lambda df, _: df.collect())
    with_data = [entry for entry in query.recentProgress if entry["numInputRows"]]
    shown = str(with_data[0]["sources"][0]["endOffset"]).replace('"', "'")
    assert f"'backlog': {{'{queue}': 42}}" in shown


def test_messages_that_arrive_later_are_read(spark: Any, url: str, queue: str, tmp_path: Path) -> None:
    seen: list[int] = []
    frame = stream(spark, url, queue, tmp_path)
    query = run(frame, tmp_path, lambda df, _: seen.extend(numbers(df.collect())), processingTime="0 seconds")
    for first in (0, 10, 20):
        publish(url, queue, (envelope(n) for n in range(first, first + 10)))
        _await(lambda first=first: len(seen) == first + 10, query)  # type: ignore[misc]
    query.stop()
    assert seen == list(range(30))


NASTY = {
    "empty": b"",
    "binary": bytes(range(256)),
    "truncated": envelope(1)[:-5],
    "array": b"[1,2]",
    "text": b"hello",
    "null": b"null",
    "five megabytes": envelope(1, data={"x": "y" * 5_000_000}),
    "deeply nested": b'{"job":"urn:x","data":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "duplicate keys": envelope(1).replace(b'"attempts":0', b'"attempts":"x","attempts":0'),
    "byte order mark": b"\xef\xbb\xbf" + envelope(1),
    "integers past 64 bits": envelope(1, attempts=2**70),
    "no identity": envelope(1, job=""),
    "no meta": envelope(1, meta=None),
    "another version": envelope(1).replace(b'"schema_version":1', b'"schema_version":2'),
    "no data": envelope(1, data=None),
    "no trace": envelope(1, trace_id=None),
    "no attempts": envelope(1, attempts=None),
}
ACCEPTED = {"five megabytes"}


def test_bad_messages_are_rows_with_a_reason_and_their_bytes(
    spark: Any, url: str, queue: str, tmp_path: Path
) -> None:
    publish(url, queue, [*NASTY.values(), envelope(7)])
    [rows] = drain(spark, url, queue, tmp_path)
    assert [bytes(row.body) for row in rows] == [*NASTY.values(), envelope_of(rows[-1])]
    errors = {name: row.error for name, row in zip(NASTY, rows, strict=False)}
    assert {name for name, error in errors.items() if error is None} == ACCEPTED
    assert errors["no identity"] == "missing_urn"
    assert errors["no meta"] == "missing_meta"
    assert errors["another version"] == "unsupported_schema_version"
    assert errors["no data"] == "invalid_data"
    assert errors["no trace"] == "missing_trace_id"
    assert errors["no attempts"] == "invalid_attempts"
    assert rows[-1].error is None
    assert numbers([rows[-1]]) == [7]


def envelope_of(row: Any) -> bytes:
    return bytes(row.body)


def test_deleted_checkpoint_replays_what_was_not_proved_committed(
    spark: Any, url: str, queue: str, tmp_path: Path
) -> None:
    publish(url, queue, (envelope(n) for n in range(10)))
    frame = stream(spark, url, queue, tmp_path)
    seen: list[int] = []
    query = run(frame, tmp_path, lambda df, _: seen.extend(numbers(df.collect())), processingTime="0 seconds")
    _await(lambda: len(seen) == 10, query)
    publish(url, queue, (envelope(n) for n in range(10, 20)))
    _await(lambda: len(seen) == 20, query)
    journal = Journal(str(tmp_path / "journal"))
    _await(lambda: journal.state().committed >= 1, query)
    query.stop()
    committed = journal.state().committed
    shutil.rmtree(tmp_path / "checkpoint")
    replayed = numbers(row for batch in drain(spark, url, queue, tmp_path) for row in batch)
    assert replayed == ([] if committed == 2 else list(range(10, 20)))
    assert backlog(url, queue) == 0


def test_second_query_on_a_journal_takes_it_over(spark: Any, url: str, queue: str, tmp_path: Path) -> None:
    frame = stream(spark, url, queue, tmp_path)
    seen: dict[str, list[int]] = {"first": [], "second": []}

    def keep(name: str) -> Any:
        return lambda df, _: seen[name].extend(numbers(df.collect()))

    publish(url, queue, [envelope(1)])
    first = run(frame, tmp_path, keep("first"), checkpoint="one", processingTime="0 seconds")
    _await(lambda: seen["first"] == [1], first)
    second = run(frame, tmp_path, keep("second"), checkpoint="two", processingTime="0 seconds")
    _await(lambda: not first.isActive, second)
    assert "was taken over by another query" in str(first.exception())
    publish(url, queue, [envelope(2)])
    _await(lambda: 2 in seen["second"], second)
    second.stop()


def test_a_journal_that_is_lost_is_data_loss(spark: Any, url: str, queue: str, tmp_path: Path) -> None:
    publish(url, queue, [envelope(1)])
    drain(spark, url, queue, tmp_path)
    shutil.rmtree(tmp_path / "journal")
    publish(url, queue, [envelope(2)])
    with pytest.raises(Exception, match="failOnDataLoss"):
        drain(spark, url, queue, tmp_path)
    [rows] = drain(spark, url, queue, tmp_path, failOnDataLoss="false")
    assert numbers(rows) == [2]


def test_a_journal_that_does_not_know_an_unfinished_batch_is_data_loss(
    spark: Any, url: str, queue: str, tmp_path: Path
) -> None:
    """As one that was restored from a copy; of finished batches it need not know."""
    journal, older = tmp_path / "journal", tmp_path / "older"

    def fail(frame: Any, _: int) -> None:
        assert numbers(frame.collect()) == [3]
        raise RuntimeError("the sink is away")

    def restored() -> None:
        shutil.rmtree(journal)
        shutil.copytree(older, journal)

    publish(url, queue, [envelope(1)])
    drain(spark, url, queue, tmp_path)
    shutil.copytree(journal, older)
    publish(url, queue, [envelope(2)])
    drain(spark, url, queue, tmp_path)
    restored()
    publish(url, queue, [envelope(3)])
    with pytest.raises(Exception, match="the sink is away"):
        run(stream(spark, url, queue, tmp_path), tmp_path, fail)
    restored()
    with pytest.raises(Exception, match="failOnDataLoss"):
        drain(spark, url, queue, tmp_path)
    publish(url, queue, [envelope(4)])
    found: list[Any] = []
    for _ in range(2):  # on PySpark 4.1 a query that was given a batch again ends there
        found += drain(spark, url, queue, tmp_path, failOnDataLoss="false")
    assert [numbers(rows) for rows in found] == [[4]]


def test_retention_lets_an_older_checkpoint_read_again(
    spark: Any, url: str, queue: str, tmp_path: Path
) -> None:
    batches = []
    for n in range(3):
        publish(url, queue, [envelope(n)])
        batches += drain(spark, url, queue, tmp_path, journalRetention="1 hour")
        if n == 0:
            shutil.copytree(tmp_path / "checkpoint", tmp_path / "older")
    shutil.rmtree(tmp_path / "checkpoint")
    (tmp_path / "older").rename(tmp_path / "checkpoint")
    again: list[Any] = []
    for _ in range(2):
        again += drain(spark, url, queue, tmp_path, journalRetention="1 hour")
    assert [numbers(batch) for batch in batches] == [[0], [1], [2]]
    assert [bytes(row.body) for batch in again for row in batch] == [
        bytes(row.body) for batch in batches[1:] for row in batch
    ]


def test_secrets_stay_out_of_plans_checkpoints_and_journals(
    spark: Any, url: str, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(url, queue, [envelope(1)])
    secret = url.rpartition("/")[2]
    frame = stream(spark, url, queue, tmp_path)
    run(frame, tmp_path, lambda df, _: df.collect())
    explained = frame._jdf.queryExecution().toString()
    assert url not in explained
    for file in [*tmp_path.glob("journal/**/*"), *tmp_path.glob("checkpoint/**/*")]:
        if file.is_file() and file.suffix != ".db":
            assert url.encode() not in file.read_bytes(), (file, secret)


def _await(condition: Any, query: Any) -> None:
    """Until `condition` holds; the query's own error when it fails first."""
    done = threading.Event()
    for _ in range(WAIT * 20):
        if condition():
            return
        if query.exception():
            raise query.exception()
        done.wait(0.05)
    raise AssertionError("the condition did not come true")
