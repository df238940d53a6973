"""The event store: what is appended is there once, in its order, whoever dies."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyspark.sql import functions as F  # noqa: N812

from babelqueue_spark.errors import EventConflictError, EventStoreError, OptionError
from babelqueue_spark.exchange.event_store import Cursor, EventStore
from tests.s3 import S3Server
from tests.streams import envelope, publish

pytestmark = pytest.mark.spark

STREAM = "acme:article:1"
CREATED = "urn:babel:articles:created"
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def store(tmp_path: Path) -> EventStore:
    return EventStore(str(tmp_path / "events"))


def numbered(spark: Any, count: int, first: int = 0) -> Any:
    return spark.range(first, first + count, numPartitions=2).select(
        F.lit(CREATED).alias("job"), F.struct(F.col("id").alias("n")).alias("data")
    )


def numbers(store: EventStore, stream: str = STREAM, **asked: Any) -> list[int]:
    return [json.loads(body)["data"]["n"] for body in store.slice(stream, **asked).events["body"].to_pylist()]


def counted(method: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    def counting(*given: Any, **named: Any) -> Any:
        calls.append(method.__name__)
        return method(*given, **named)

    return counting


class TestPutting:
    def test_events_keep_their_order(self, store: EventStore) -> None:
        for first in range(0, 60, 3):
            store.put(STREAM, [{"job": CREATED, "data": {"n": first + n}} for n in range(3)])
        assert numbers(store, count=100) == list(range(60))

    def test_one_of_several_writers_succeeds(self, store: EventStore) -> None:
        [last] = store.put(STREAM, [{"job": CREATED, "data": {"n": 0}}], expected="")

        def conflicts(number: int) -> bool:
            try:
                store.put(STREAM, [{"job": CREATED, "data": {"n": number}}], expected=last)
            except EventConflictError:
                return True
            return False

        with ThreadPoolExecutor(8) as writers:
            assert sum(writers.map(conflicts, range(1, 9))) == 7
        assert len(numbers(store)) == 2

    def test_a_commit_whose_answer_was_lost_is_not_repeated(
        self, store: EventStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commit = DeltaTable.create_write_transaction

        def unanswered(*given: Any, **named: Any) -> None:
            commit(*given, **named)
            raise CommitFailedError("the connection was lost")

        monkeypatch.setattr(DeltaTable, "create_write_transaction", unanswered)
        store.put(STREAM, [{"job": CREATED, "data": {"n": 0}}], expected="")
        assert numbers(store) == [0]

    def test_a_commit_that_fails_says_why(self, store: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
        def refused(*_: Any, **__: Any) -> None:
            raise CommitFailedError("no rights")

        monkeypatch.setattr(DeltaTable, "create_write_transaction", refused)
        with pytest.raises(EventStoreError, match="no rights"):
            store.put(STREAM, [{"job": CREATED, "data": {"n": 0}}])

    def test_writers_of_other_streams_do_not_conflict(self, store: EventStore) -> None:
        def put(number: int) -> None:
            store.put(f"acme:article:{number}", [{"job": CREATED, "data": {"n": number}}], expected="")

        with ThreadPoolExecutor(4) as writers:
            list(writers.map(put, range(4)))
        assert [numbers(store, f"acme:article:{number}") for number in range(4)] == [[0], [1], [2], [3]]

    @pytest.mark.parametrize("others", [1, 12])
    def test_commits_to_other_streams_need_no_further_read(
        self, store: EventStore, monkeypatch: pytest.MonkeyPatch, others: int
    ) -> None:
        store.put(STREAM, [{"job": CREATED, "data": {"n": 0}}])
        page = store.slice(STREAM)
        for number in range(others):
            store.put(f"acme:other:{number}", [{"job": CREATED, "data": {"n": number}}])
        calls: list[str] = []
        for name in ("create", "load_cdf"):
            monkeypatch.setattr(DeltaTable, name, counted(getattr(DeltaTable, name), calls))
        store.put(STREAM, [{"job": CREATED, "data": {"n": 1}}], expected=page)
        assert calls == ["create", "load_cdf"]

    def test_a_stream_that_must_be_empty(self, store: EventStore) -> None:
        store.put(STREAM, [{"job": CREATED, "data": {"n": 0}}])
        with pytest.raises(EventConflictError, match=r"the event that was added last is .*, which was not"):
            store.put(STREAM, [{"job": CREATED, "data": {"n": 1}}], expected="")

    def test_an_older_event_that_was_appended_meanwhile_is_a_conflict(
        self, spark: Any, store: EventStore
    ) -> None:
        [last] = store.put(STREAM, [{"job": CREATED, "data": {"n": 1}}])
        page = store.slice(STREAM)
        older = F.struct(F.lit(datetime(2026, 1, 2, tzinfo=UTC)).alias("created_at"))
        store.append(numbered(spark, 1).withColumn("meta", older), STREAM)
        store.append(numbered(spark, 1), "acme:article:2")
        for expected in (last, page):
            with pytest.raises(EventConflictError, match="expect that slice"):
                store.put(STREAM, [{"job": CREATED, "data": {"n": 2}}], expected=expected)
        assert numbers(store) == [0, 1]
        [last] = store.put(STREAM, [{"job": CREATED, "data": {"n": 2}}], expected=store.slice(STREAM))
        store.put(STREAM, [{"job": CREATED, "data": {"n": 3}}], expected=last)
        assert numbers(store) == [0, 1, 2, 3]
        with pytest.raises(OptionError, match="read one of acme:article:2"):
            store.put("acme:article:2", [{"job": CREATED, "data": {}}], expected=page)

    def test_the_event_that_was_added_last_is_not_the_last_in_time(self, store: EventStore) -> None:
        days = [datetime(2026, 1, day, tzinfo=UTC) for day in (3, 1, 2)]
        events = [{"job": CREATED, "data": {"n": at.day}, "occurred_at": at} for at in days]
        first, *_, last = store.put(STREAM, events)
        with pytest.raises(EventConflictError, match=last):
            store.put(STREAM, [{"job": CREATED, "data": {"n": 4}}], expected=first)
        store.put(STREAM, [{"job": CREATED, "data": {"n": 4}}], expected=last)
        assert numbers(store) == [1, 2, 3, 4]

    def test_files_that_were_rewritten_are_no_conflict(self, store: EventStore, tmp_path: Path) -> None:
        for n in range(3):
            [last] = store.put(STREAM, [{"job": CREATED, "data": {"n": n}}])
        DeltaTable(str(tmp_path / "events")).optimize.compact()
        store.put(STREAM, [{"job": CREATED, "data": {"n": 3}}], expected=last)
        page = store.slice(STREAM, count=1)
        DeltaTable(str(tmp_path / "events")).optimize.compact()
        store.put(STREAM, [{"job": CREATED, "data": {"n": 4}}], expected=page)
        assert numbers(store) == [0, 1, 2, 3, 4]

    def test_a_slice_that_is_older_than_a_vacuum(self, store: EventStore, tmp_path: Path) -> None:
        page = store.slice(STREAM)
        for n in range(2):
            store.put("acme:article:2", [{"job": CREATED, "data": {"n": n}}])
        table = DeltaTable(str(tmp_path / "events"))
        table.optimize.compact()
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        with pytest.raises(EventConflictError, match=r"are deleted \(vacuum\): read it again"):
            store.put(STREAM, [{"job": CREATED, "data": {"n": 0}}], expected=page)
        store.put(STREAM, [{"job": CREATED, "data": {"n": 0}}], expected=store.slice(STREAM))

    def test_an_event_keeps_the_id_time_and_meta_that_are_given(self, store: EventStore) -> None:
        at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
        given = {"id": "mine", "occurred_at": at, "meta": {"causation_id": "c", "tenant": {"name": "é"}}}
        ids = store.put(
            STREAM, [{"job": CREATED, "data": {"n": 1}, **given}, {"job": CREATED, "data": {"n": 2}}]
        )
        assert ids[0] == "mine"
        first, second = store.slice(STREAM).events.to_pylist()
        assert (first["event_id"], first["occurred_at"]) == ("mine", at)
        assert second["occurred_at"] > at
        meta = json.loads(first["body"])["meta"]
        assert (meta["id"], meta["created_at"]) == ("mine", int(at.timestamp() * 1000))
        assert (meta["causation_id"], meta["tenant"]) == ("c", {"name": "é"})
        with pytest.raises(EventConflictError, match="has an event mine: give another one another id"):
            store.put(STREAM, [{"job": CREATED, "data": {}, "id": "mine"}])

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ({"trace": "t"}, "event 0 has trace, but takes job, data, trace_id, meta, id, occurred_at"),
            ({"data": {"n": float("nan")}}, "the data of event 0 cannot be JSON"),
            ({"meta": {"score": float("inf")}}, "meta.score of event 0 cannot be JSON"),
            ({"meta": {"id": "i"}}, "the meta of event 0 has id, which the envelope sets"),
            ({"occurred_at": datetime(2026, 1, 2)}, "takes a datetime with a time zone"),
        ],
    )
    def test_what_an_event_cannot_hold_is_refused(
        self, store: EventStore, given: dict[str, Any], text: str
    ) -> None:
        with pytest.raises(OptionError, match=re.escape(text)):
            store.put(STREAM, [{"job": CREATED, "data": {}, **given}])
        assert store.slice(STREAM).cursor is None

    def test_what_is_not_a_stream(self, store: EventStore) -> None:
        with pytest.raises(OptionError, match="is not a stream"):
            store.put("acme", [{"job": CREATED, "data": {}}])


class TestSlices:
    def test_pages_of_events_of_one_moment(self, spark: Any, store: EventStore) -> None:
        """A cursor of a time alone would skip those of the same millisecond."""
        at = datetime(2026, 1, 2, tzinfo=UTC)
        frame = numbered(spark, 10).withColumn("meta", F.struct(F.lit(at).alias("created_at")))
        assert store.append(frame, STREAM) == 10
        since, read = None, []
        while (page := store.slice(STREAM, since, count=3)).events.num_rows:
            assert page.has_more == (len(read) < 9)
            read += page.events["event_id"].to_pylist()
            since = page.cursor
        assert len(set(read)) == len(read) == 10
        assert since == Cursor(at, read[-1])
        back = store.slice(STREAM, since, count=100, forward=False)
        assert back.events["event_id"].to_pylist() == read[-2::-1]

    def test_a_time_is_an_exclusive_bound(self, store: EventStore) -> None:
        store.put(STREAM, [{"job": CREATED, "data": {"n": n}} for n in range(5)])
        times = store.slice(STREAM).events["occurred_at"].to_pylist()
        assert numbers(store, since=times[1]) == [2, 3, 4]
        assert numbers(store, since=times[3], forward=False) == [2, 1, 0]
        assert numbers(store, forward=False, count=2) == [4, 3]

    def test_files_that_cannot_hold_the_next_events_are_not_read(
        self, store: EventStore, tmp_path: Path
    ) -> None:
        for number in range(6):
            store.put(STREAM, [{"job": CREATED, "data": {"n": number}}])
        first, *_, last = sorted(tmp_path.glob("events/*.parquet"), key=lambda path: path.stat().st_mtime_ns)
        first.rename(tmp_path / "away")
        assert numbers(store, forward=False, count=2) == [5, 4]
        store.put(STREAM, [{"job": CREATED, "data": {"n": 6}}])
        (tmp_path / "away").rename(first)
        last.unlink()
        assert numbers(store, count=2) == [0, 1]
        with pytest.raises(EventStoreError):
            numbers(store, count=6)

    def test_a_table_whose_files_were_rewritten(self, spark: Any, store: EventStore, tmp_path: Path) -> None:
        """Delta's `optimize` cuts the microseconds of the times that it says a file ends with."""
        for number in range(2):
            store.put(STREAM, [{"job": CREATED, "data": {"n": 3 * number + n}} for n in range(3)])
        times = store.slice(STREAM).events["occurred_at"].to_pylist()
        DeltaTable(str(tmp_path / "events")).optimize.compact()
        assert numbers(store, since=times[4]) == [5]
        assert numbers(store, since=times[5], forward=False) == [4, 3, 2, 1, 0]
        assert store.events(spark, STREAM, since=times[4]).count() == 1

    def test_appended_rows_name_their_time(self, spark: Any, store: EventStore) -> None:
        rows = [("2026-01-02 03:04:05.678901", 0), (None, 1)]
        frame = spark.createDataFrame(rows, "at STRING, n INT").selectExpr(
            f"'{CREATED}' AS job", "to_json(struct(n)) AS data", "CAST(at AS TIMESTAMP) AS occurred_at"
        )
        store.append(frame, STREAM)
        first, second = store.slice(STREAM).events["occurred_at"].to_pylist()
        assert first == datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
        assert second > first
        with pytest.raises(Exception, match="occurred_at is of the type string, but takes TIMESTAMP"):
            store.append(frame.withColumn("occurred_at", F.lit("2026-01-02")), STREAM)
        again = store.events(spark).select("body", "occurred_at")
        store.append(again, "acme:copies")
        assert store.slice("acme:copies").events["occurred_at"].to_pylist() == [first, second]

    def test_streams_are_apart(self, store: EventStore) -> None:
        store.put("acme:a", [{"job": CREATED, "data": {"n": 1}}])
        store.put("acme:a:b", [{"job": CREATED, "data": {"n": 2}}])
        assert numbers(store, "acme:a") == [1]
        assert store.slice("acme:c").cursor is None

    def test_one_event(self, store: EventStore) -> None:
        first, second = store.put(STREAM, [{"job": CREATED, "data": {"n": n}} for n in range(2)])
        found = store.get(STREAM, first)
        assert found is not None
        assert found["event_id"] == first
        assert store.delete(STREAM, first)
        assert not store.delete(STREAM, "' OR ''='")
        assert store.get(STREAM, first) is None
        assert store.slice(STREAM).events["event_id"].to_pylist() == [second]

    def test_a_file_from_which_an_event_was_deleted(
        self, spark: Any, store: EventStore, tmp_path: Path
    ) -> None:
        """The library writes the rest of the file again, with types of its own."""
        other = "acme:article:2"
        for stream in (STREAM, other):
            store.append(numbered(spark, 6).coalesce(1), stream)
        DeltaTable(str(tmp_path / "events")).optimize.compact()
        ids = {stream: store.slice(stream).events["event_id"].to_pylist() for stream in (STREAM, other)}
        assert store.delete(other, ids[other].pop(0))
        assert store.get(other, ids[other][0]) is not None
        for stream, left in ids.items():
            found = store.slice(stream).events["event_id"].to_pylist()
            assert found == left
            [last] = store.put(stream, [{"job": CREATED, "data": {"n": 9}}], expected=found[-1])
            assert store.events(spark, stream).count() == len(found) + 1
            assert store.slice(stream, count=1, forward=False).events["event_id"].to_pylist() == [last]
        assert store.describe().events == 13


class TestAppending:
    def test_a_transaction_is_appended_once(self, spark: Any, store: EventStore) -> None:
        assert store.append(numbered(spark, 10), STREAM, txn=("orders", 1)) == 10
        assert store.append(numbered(spark, 10), STREAM, txn=("orders", 1)) == 0
        assert store.append(numbered(spark, 10, 10), STREAM, txn=("orders", 2)) == 10
        assert store.append(numbered(spark, 10, 20), STREAM, txn=("others", 1)) == 10
        assert sorted(numbers(store, count=100)) == list(range(30))

    def test_two_committers_of_one_transaction(self, spark: Any, store: EventStore) -> None:
        with ThreadPoolExecutor(2) as both:
            done = both.map(lambda _: store.append(numbered(spark, 10), STREAM, txn=("orders", 1)), range(2))
        assert sorted(done) == [0, 10]
        assert sorted(numbers(store, count=100)) == list(range(10))

    def test_bodies_as_they_were_read(self, spark: Any, store: EventStore, tmp_path: Path) -> None:
        url, sent = f"sqlite:///{tmp_path}/queue.db", [envelope(n) for n in range(3)]
        publish(url, "orders", sent)
        read = spark.read.format("babelqueue").options(url=url, queue="orders").load()
        store.append(read, F.concat(F.lit("acme:order:"), F.get_json_object("data", "$.order_id")))
        events = store.events(spark)
        assert sorted(bytes(row.body) for row in events.collect()) == sorted(sent)
        assert {row.stream for row in events.collect()} == {f"acme:order:{n}" for n in range(3)}

    def test_a_row_that_is_not_an_event_appends_nothing(self, spark: Any, store: EventStore) -> None:
        frame = spark.createDataFrame([(bytes(envelope(1)),), (b"{}",)], "body BINARY").coalesce(1)
        with pytest.raises(Exception, match=r"row 1 is not an event \(its body has the error"):
            store.append(frame, STREAM)
        assert store.slice(STREAM).events.num_rows == 0

    @pytest.mark.parametrize("member", ["created_at", "id"])
    def test_an_event_without_a_place_in_the_order_is_none(
        self, spark: Any, store: EventStore, member: str
    ) -> None:
        body = json.loads(envelope(1))
        del body["meta"][member]
        frame = spark.createDataFrame([(bytes(envelope(1)),), (json.dumps(body).encode(),)], "body BINARY")
        with pytest.raises(Exception, match=r"row 1 is not an event \(its body has no meta.id, or no"):
            store.append(frame.coalesce(1), STREAM)

    def test_a_part_of_the_events(self, spark: Any, store: EventStore) -> None:
        store.put(STREAM, [{"job": CREATED, "data": {"n": n}} for n in range(4)])
        before = datetime.now(UTC)
        store.put("acme:article:2", [{"job": CREATED, "data": {"n": 9}}])
        times = store.slice(STREAM).events["occurred_at"].to_pylist()
        assert store.events(spark, STREAM, since=times[0], until=times[3]).count() == 2
        assert store.events(spark).count() == 5
        assert store.events(spark, as_of=1).count() == 4
        assert store.events(spark, as_of=before).count() == 4
        assert store.events(spark, since=datetime.now(UTC) + timedelta(days=1)).count() == 0


KILLED = """
import os, signal, sys
from deltalake import DeltaTable
from pyspark.sql import SparkSession, functions as F
from babelqueue_spark.exchange.event_store import EventStore
location, point = sys.argv[1:]
commit = DeltaTable.create_write_transaction
def dying(*args, **named):
    if point == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    commit(*args, **named)
    os.kill(os.getpid(), signal.SIGKILL)
if point != "never":
    DeltaTable.create_write_transaction = dying
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.range(100, numPartitions=2).select(
    F.lit("urn:babel:articles:created").alias("job"), F.struct(F.col("id").alias("n")).alias("data"))
EventStore(location).append(frame, "acme:article:1", txn=("orders", 7))
"""


@pytest.mark.slow
@pytest.mark.parametrize("point", ["before", "after"])
def test_a_killed_driver_and_its_repetition_append_once(
    store: EventStore, tmp_path: Path, point: str
) -> None:
    """Before the commit its files are there, and in no table; after it the transaction is."""
    location = str(tmp_path / "events")
    for how in (point, "never"):
        done = subprocess.run([sys.executable, "-c", KILLED, location, how], capture_output=True, check=False)
        assert done.returncode == (0 if how == "never" else -signal.SIGKILL), done.stderr.decode()[-2000:]
    assert sorted(numbers(store, count=200)) == list(range(100))
    assert len(list(Path(location).glob("*.parquet"))) == (4 if point == "before" else 2)


def test_what_was_appended_is_published(spark: Any, store: EventStore, tmp_path: Path) -> None:
    """The store is an outbox: each event reaches the queue once, with its own id, over restarts."""
    url = f"sqlite:///{tmp_path}/queue.db"

    def relay() -> None:
        query = (
            store.follow(spark)
            .selectExpr(
                "get_json_object(string(body), '$.data') AS data",
                "job",
                "named_struct('id', event_id) AS meta",
            )
            .writeStream.format("babelqueue")
            .options(url=url, queue="articles", checkpointLocation=str(tmp_path / "relay"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    ids = store.put(STREAM, [{"job": CREATED, "data": {"n": n}} for n in range(3)])
    relay()
    ids += store.put("acme:article:2", [{"job": CREATED, "data": {"n": 3}}])
    store.delete(STREAM, ids[0])
    relay()
    relay()
    queue = spark.read.format("babelqueue").options(url=url, queue="articles").load()
    assert sorted(row.meta.id for row in queue.collect()) == sorted(ids)


def test_the_search_of_the_docs_shows_each_page_once(spark: Any, store: EventStore) -> None:
    """Though events are of one moment, of other URNs or texts, and new ones come between two pages."""
    [search] = re.findall(r'search = """(.*?)"""', (DOCS / "exchange.md").read_text(), re.DOTALL)
    wanted = [store.put(STREAM, [{"job": CREATED, "data": {"title": "Queues"}}] * 20) for _ in range(3)]
    ids = [event_id for some in wanted for event_id in some]
    store.put(
        STREAM, [{"job": CREATED, "data": {"title": "Streams"}}, {"job": "urn:b", "data": {"title": "queue"}}]
    )
    found: list[str] = []
    behind = {"at": datetime(9999, 1, 1), "id": ""}
    while True:
        store.events(spark).createOrReplaceTempView("events")
        asked = {"urn": "urn:babel:articles:%", "text": "QUEUE", **behind}
        page = spark.sql(search, asked).collect()
        if not page:
            break
        assert len(page) == min(25, len(ids) - len(found))
        found += [row.event_id for row in page]
        behind = {"at": page[-1].occurred_at, "id": page[-1].event_id}
        store.put(STREAM, [{"job": CREATED, "data": {"title": "a new queue"}}])
    assert found == [*reversed(ids)]


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server() as started:
        yield started


def test_on_an_object_store(server: S3Server) -> None:
    """Credentials come from where those of a journal do."""
    store = EventStore(f"s3://{server.bucket}/events", {"aws_allow_http": "true"})
    [first] = store.put(STREAM, [{"job": CREATED, "data": {"n": 0}}], expected="")
    store.put(STREAM, [{"job": CREATED, "data": {"n": 1}}], expected=first)
    with pytest.raises(EventConflictError):
        store.put(STREAM, [{"job": CREATED, "data": {"n": 2}}], expected=first)
    assert numbers(store) == [0, 1]


def test_executors_reach_an_object_store(spark: Any, server: S3Server, tmp_path: Path) -> None:
    options = {
        "aws_endpoint_url": server.url,
        "aws_allow_http": "true",
        "aws_region": "us-east-1",
        "aws_access_key_id": "test",
        "aws_secret_access_key": "test",
    }
    store, url = EventStore(f"s3://{server.bucket}/events", options), f"sqlite:///{tmp_path}/queue.db"
    for _ in range(2):
        store.append(numbered(spark, 100), STREAM, txn=("orders", 1))
    assert sorted(numbers(store, count=200)) == [*range(100)]
    assert store.events(spark, STREAM).count() == 100
    found: list[Any] = []
    query = (
        store.follow(spark)
        .writeStream.foreachBatch(lambda frame, _: found.extend(frame.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert len({row.event_id for row in found}) == len(found) == 100
    replayed = store.replay(spark, {"url": url}, {"*": "again"}, bypass=False)
    assert replayed.messages == {"again": 100}


@pytest.mark.parametrize("location", ["s3://key:hush-hush@bucket/x", "gs://bucket/x?token=hush-hush"])
def test_a_location_with_a_secret_is_refused(location: str) -> None:
    with pytest.raises(OptionError, match="takes no login") as refused:
        EventStore(location)
    assert "hush-hush" not in str(refused.value)


@pytest.mark.parametrize("name", ["a b", "ü#?*", "50%"])
@pytest.mark.parametrize("form", [str, Path.as_uri], ids=["path", "URL"])
def test_a_folder_may_have_any_other_name(tmp_path: Path, name: str, form: Callable[[Path], str]) -> None:
    store = EventStore(form(tmp_path / name))
    first, second = store.put(STREAM, [{"job": CREATED, "data": {"n": n}} for n in range(2)])
    assert store.delete(STREAM, first)
    assert store.slice(STREAM).events["event_id"].to_pylist() == [second]
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["a%20b", "a[b", "a^b"])
def test_a_folder_that_the_library_cannot_use_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OptionError, match="rename the folder"):
        EventStore(f"{tmp_path}/{name}")
    with pytest.raises(OptionError, match="has the scheme 'hdfs:'"):
        EventStore("hdfs://namenode/events")


def test_errors_are_one_line_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = EventStore(str(tmp_path / "file/events"), {"aws_secret_access_key": "hush-hush"})
    with pytest.raises(Exception, match="event store") as failed:
        store.slice(STREAM)
    assert "\n" not in str(failed.value)
    assert "hush-hush" not in f"{failed.value}{store!r}"
