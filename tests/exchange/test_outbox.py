"""A transactional outbox: what it holds is published once, in order, whatever dies, and whoever relays beside."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from babelqueue.codec import EnvelopeCodec
from babelqueue.outbox import Outbox as SdkOutbox
from babelqueue.outbox import OutboxRecord, OutboxRelay
from babelqueue.redis_transport import RedisTransport
from sqlalchemy import text

from babelqueue_spark.bindings import BaseBinding
from babelqueue_spark.bindings.rabbitmq.binding import RabbitBinding
from babelqueue_spark.bindings.sql import SqlBinding
from babelqueue_spark.connector import publishing
from babelqueue_spark.connector.options import read_options
from babelqueue_spark.errors import BrokerError, BrokerFullError, BrokerUnreachableError, QueuesFailedError
from babelqueue_spark.exchange import Outbox, Relayed
from babelqueue_spark.exchange import outbox as outbox_module
from babelqueue_spark.testing import eventually, in_processes
from tests.brokers import url_of
from tests.exchange.outboxes import columns, made, store, transaction
from tests.exchange.schedules import die, killed, may_use, messages, numbers_in
from tests.streams import drain, envelope, numbers, outgoing
from tests.worker.queues import taken

POINTS = ["before the claim", "after the claim", "after the publish", "after the mark"]
SHORT = 2.0
"""The shortest lease of a relay, in seconds."""
DATABASES = ["sqlite", "postgresql", "mariadb"]


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/queue.db"


@pytest.fixture
def table(queue: str) -> str:
    return f"o_{queue[-8:]}"


@pytest.fixture
def box(tmp_path: Path) -> Outbox:
    return Outbox(f"sqlite:///{tmp_path}/shop.db", lease=SHORT)


@pytest.fixture
def rabbitmq_in_twos(rabbitmq_server: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """RabbitMQ, to which two messages are published at once."""
    monkeypatch.setattr(publishing, "_PART", 2)
    return str(rabbitmq_server.url)


def relayed_by(url: str, table: str, target: str, lease: float) -> int:
    """In a process of its own: how many rows it published."""
    return Outbox(url, table, lease).relay({"url": target}).messages


def an_hour_a_look() -> SimpleNamespace:
    """A clock that is an hour later each time: a claim is over with the first that is published of it."""
    return SimpleNamespace(monotonic=count(step=3_600).__next__)


def with_large(outbox: Outbox, queue: str) -> None:
    """Store a row that Kinesis refuses."""
    made(outbox)
    body = json.dumps({"job": "urn:babel:x", "data": {"large": "x" * (1 << 20)}})
    insert = text(f"INSERT INTO {outbox.table} (queue, body) VALUES (:queue, :body)")
    with transaction(outbox) as connection:
        connection.execute(insert, {"queue": queue, "body": body})


class TestRelay:
    def test_rows_are_published_in_order_and_marked(
        self, database: str, redis_server: Any, table: str, queue: str
    ) -> None:
        outbox = Outbox(database, table)
        queues = [queue, f"{queue}-b"]
        store(outbox, range(10), queues)
        assert outbox.relay({"url": redis_server.url}).messages == 10
        assert numbers_in(redis_server.url, *queues) == [*range(0, 10, 2), *range(1, 10, 2)]
        assert columns(outbox, "status, attempts, picked_at") == [("published", 0, None)] * 10
        assert outbox.relay({"url": redis_server.url}).messages == 0

    def test_bodies_stay_byte_for_byte(self, box: Outbox, redis_server: Any, queue: str) -> None:
        made(box)
        body = '{ "job":"urn:babel:x", "data":{"amount":1.50}}'
        with transaction(box) as connection:
            connection.execute(
                text("INSERT INTO outbox (queue, body) VALUES (:queue, :body)"),
                {"queue": queue, "body": body},
            )
        box.relay({"url": redis_server.url})
        with read_options({"url": redis_server.url, "queue": queue}).binding() as binding:
            assert [row.as_py() for batch in binding.browse(queue) for row in batch["body"]] == [
                body.encode()
            ]

    def test_what_is_rolled_back_is_not_published(self, box: Outbox, sqlite: str, queue: str) -> None:
        store(box, [1], [queue])
        with pytest.raises(RuntimeError), transaction(box) as connection:
            connection.execute(text("INSERT INTO outbox (queue, body) VALUES ('q', '{}')"))
            raise RuntimeError
        assert box.relay({"url": sqlite}).messages == 1

    def test_one_queue_may_take_all(self, box: Outbox, sqlite: str, queue: str) -> None:
        store(box, range(4), [queue, f"{queue}-b"])
        box.relay({"url": sqlite, "queue": "all"})
        assert sorted(numbers_in(sqlite, "all")) == [0, 1, 2, 3]

    def test_several_relays_share_the_queues_and_keep_their_order(
        self, database: str, redis_server: Any, table: str, queue: str
    ) -> None:
        outbox = Outbox(database, table)
        queues = [f"{queue}-{number}" for number in range(3)]
        store(outbox, range(300), queues)
        published = in_processes(3, relayed_by, database, table, redis_server.url, 90.0)
        outbox.relay({"url": redis_server.url})
        assert sum(published) <= 300
        for number, name in enumerate(queues):
            assert numbers_in(redis_server.url, name) == list(range(number, 300, 3))

    def test_a_queue_that_another_relay_has_claimed_is_passed_over(
        self, database: str, redis_server: Any, table: str, queue: str
    ) -> None:
        outbox = Outbox(database, table)
        store(outbox, range(6), [queue])
        with outbox._binding() as dead:
            assert dead.claim(queue, 2, 1 << 20).num_rows == 2
        assert outbox.relay({"url": redis_server.url}).messages == 0
        late = Outbox(database, table, lease=SHORT)
        eventually(lambda: late.relay({"url": redis_server.url}).messages == 6)
        assert numbers_in(redis_server.url, queue) == list(range(6))

    def test_a_broker_that_is_away_leaves_all_rows_pending(
        self, box: Outbox, redis_server: Any, queue: str
    ) -> None:
        store(box, range(3), [queue])
        with pytest.raises(BrokerUnreachableError):
            box.relay({"url": "redis://127.0.0.1:1/0"})
        [[status, attempts, error]] = set(columns(box, "status, attempts, error"))
        assert (status, attempts) == ("pending", 1)
        assert "127.0.0.1:1" in error
        assert box.relay({"url": redis_server.url}).messages == 3
        assert set(columns(box, "status, error")) == {("published", None)}

    def test_a_queue_that_is_closed_to_the_user_stops_no_other(
        self, box: Outbox, redis_server: Any, queue: str
    ) -> None:
        closed = f"{queue}-closed"
        store(box, range(4), [closed, f"{queue}-open"])
        failure = pytest.raises(QueuesFailedError, match="extend its ACL")
        with may_use(redis_server, f"{queue}-open") as url, failure as raised:
            box.relay({"url": url})
        assert ([*raised.value.failed], raised.value.done) == ([closed], Relayed(2))
        assert numbers_in(redis_server.url, f"{queue}-open") == [1, 3]
        assert box.relay({"url": redis_server.url}).messages == 2
        assert numbers_in(redis_server.url, closed) == [0, 2]

    @pytest.mark.parametrize("broker", ["sqlite", "redis", "kafka"])
    def test_rows_that_are_pending_once_more_are_published_once_more(
        self, broker: str, box: Outbox, request: pytest.FixtureRequest, tmp_path: Path, queue: str
    ) -> None:
        url = url_of(broker, request, tmp_path)
        store(box, range(3), [queue])
        assert box.relay({"url": url}).messages == 3
        with transaction(box) as connection:
            connection.execute(text("UPDATE outbox SET status = 'pending'"))
        assert box.relay({"url": url}).messages == 3
        assert numbers_in(url, queue) == [0, 1, 2] * 2

    def test_a_row_of_another_outbox_with_the_same_id_and_body_is_published(
        self, box: Outbox, redis_server: Any, tmp_path: Path, queue: str
    ) -> None:
        row = {"queue": queue, "body": envelope(7).decode()}
        for outbox in (box, Outbox(f"sqlite:///{tmp_path}/other.db")):
            made(outbox)
            with transaction(outbox) as connection:
                connection.execute(text("INSERT INTO outbox (queue, body) VALUES (:queue, :body)"), row)
            assert outbox.relay({"url": redis_server.url}).messages == 1
        assert numbers_in(redis_server.url, queue) == [7, 7]

    def test_rows_that_another_program_claimed_beside_a_claim_are_published(
        self, database: str, redis_server: Any, table: str, queue: str
    ) -> None:
        outbox = Outbox(database, table, lease=SHORT)
        store(outbox, range(2), [queue])
        with outbox._binding() as dead:
            dead.claim(queue, 2, 1 << 20)
        store(outbox, range(2, 4), [queue])
        with transaction(outbox) as connection:
            claimed_at = f"(SELECT at FROM (SELECT MAX(picked_at) AS at FROM {table}) AS claims)"
            connection.execute(text(f"UPDATE {table} SET picked_at = {claimed_at} WHERE picked_at IS NULL"))
        eventually(lambda: outbox.relay({"url": redis_server.url}).messages == 4)
        assert numbers_in(redis_server.url, queue) == [0, 1, 2, 3]

    def test_what_was_refused_comes_after_all_others(self, database: str, table: str, queue: str) -> None:
        outbox = Outbox(database, table)
        store(outbox, range(3), [queue])
        with outbox._binding() as rows:
            claimed = rows.claim(queue, 10, 1 << 20)
            rows.mark_failed(claimed.slice(0, 1), "refused", together=False)
            rows.mark_failed(claimed.slice(1), "the broker is away", together=True)
            store(outbox, [3], [queue])
            for expected in (
                claimed.column("id").to_pylist()[1:],
                None,
                claimed.column("id").to_pylist()[:1],
            ):
                again = rows.claim(queue, 10, 1 << 20)
                assert again.column("id").to_pylist() == (expected or again.column("id").to_pylist())
                assert again.num_rows == len(expected or [3])
                assert rows.claim(queue, 10, 1 << 20).num_rows == 0
                rows.acknowledge(queue, again)
            assert rows.claim(queue, 10, 1 << 20).num_rows == 0

    def test_what_the_broker_refuses_holds_up_no_other(
        self, box: Outbox, aws_server: Any, queue: str
    ) -> None:
        box = Outbox(box.url)
        store(box, [0], [queue])
        with_large(box, queue)
        store(box, [2], [queue])
        relayed = box.relay({"url": aws_server.url})
        assert (relayed.messages, relayed.failed) == (2, 1)
        found = columns(box, "status, attempts")
        assert found == [("published", 0), ("pending", 1), ("published", 0)]
        assert box.relay({"url": aws_server.url}).failed == 1

    def test_a_row_that_names_no_queue_holds_up_no_other(
        self, box: Outbox, redis_server: Any, queue: str
    ) -> None:
        box = Outbox(box.url)
        store(box, range(2), [f"{queue}:delayed", queue])
        relayed = box.relay({"url": redis_server.url})
        assert (relayed.messages, relayed.failed) == (1, 1)
        [(refused, error), (_, none)] = columns(box, "status, error")
        assert (refused, none) == ("pending", None)
        assert "is not the name of a queue" in error

    def test_what_is_confirmed_before_a_refusal_is_published_once(
        self, box: Outbox, elasticmq_server: Any, queue: str
    ) -> None:
        """SQS takes ten messages at once: the first ten are confirmed when the second ten are refused."""
        box = Outbox(box.url)
        store(box, range(15), [queue])
        with_large(box, queue)
        store(box, range(15, 30), [queue])
        relayed = box.relay({"url": elasticmq_server.url})
        assert (relayed.messages, relayed.failed) == (30, 1)
        found = taken(elasticmq_server.url, queue, 30)
        assert sorted(json.loads(body)["data"]["order_id"] for body in found) == list(range(30))

    def test_a_slow_relay_releases_what_it_has_no_time_for(
        self, box: Outbox, aws_server: Any, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        box = Outbox(box.url)
        store(box, [0], [queue])
        with_large(box, queue)
        store(box, [1, 2], [queue])
        monkeypatch.setattr(outbox_module, "time", an_hour_a_look())
        relayed = box.relay({"url": aws_server.url})
        assert (relayed.messages, relayed.failed) == (3, 1)
        assert set(columns(box, "picked_at")) == {(None,)}
        assert numbers_in(aws_server.url, queue) == [0, 1, 2]

    @pytest.mark.parametrize("error", [BrokerError, BrokerFullError])
    def test_what_a_broker_without_keys_has_confirmed_is_published_once(
        self, error: type[BrokerError], box: Outbox, rabbitmq_in_twos: str, queue: str, monkeypatch: Any
    ) -> None:
        """The second of three parts fails once."""
        publish_now, calls = RabbitBinding._publish, count(1)

        def failing(self: Any, *args: Any, **given: Any) -> int:
            if next(calls) == 2:
                raise error("refused")
            return publish_now(self, *args, **given)

        monkeypatch.setattr(RabbitBinding, "_publish", failing)
        store(box, range(6), [queue])
        if error is BrokerFullError:
            with pytest.raises(QueuesFailedError) as raised:
                box.relay({"url": rabbitmq_in_twos})
            assert raised.value.done == Relayed(2)
            assert [status for (status,) in columns(box, "status")].count("published") == 2
        box.relay({"url": rabbitmq_in_twos})
        assert numbers_in(rabbitmq_in_twos, queue) == list(range(6))

    def test_a_slow_relay_releases_the_parts_that_it_has_no_time_for(
        self, box: Outbox, rabbitmq_in_twos: str, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store(box, range(6), [queue])
        monkeypatch.setattr(outbox_module, "time", an_hour_a_look())
        assert Outbox(box.url).relay({"url": rabbitmq_in_twos}).messages == 6
        assert numbers_in(rabbitmq_in_twos, queue) == list(range(6))


class TestKills:
    @pytest.mark.parametrize("point", POINTS)
    @pytest.mark.parametrize("broker", ["sqlite", "redis"])
    def test_a_killed_relay_loses_nothing_and_repeats_nothing(
        self, broker: str, point: str, box: Outbox, request: pytest.FixtureRequest, tmp_path: Path, queue: str
    ) -> None:
        url = url_of(broker, request, tmp_path)
        queues = [queue, f"{queue}-b"]
        store(box, range(20), queues)
        assert killed_at(point, box, url)
        store(box, range(20, 24), queues)

        def relayed() -> bool:
            box.relay({"url": url})
            return {status for (status,) in columns(box, "status")} == {"published"}

        eventually(relayed)
        assert numbers_in(url, *queues) == [*range(0, 24, 2), *range(1, 24, 2)]

    def test_without_idempotency_keys_a_repeat_has_the_same_ids(
        self, box: Outbox, rabbitmq_server: Any, queue: str
    ) -> None:
        store(box, range(5), [queue])
        assert killed_at("after the publish", box, rabbitmq_server.url)
        eventually(lambda: box.relay({"url": rabbitmq_server.url}).messages == 5)
        found = messages(rabbitmq_server.url, queue)
        assert found[:5] == found[5:]


class TestBesideTheSdk:
    def test_its_relay_and_ours_publish_each_row_once(self, box: Outbox, sqlite: str, queue: str) -> None:
        store(box, range(40), [queue])
        theirs = Transport()
        relay = OutboxRelay(theirs, Store(box), batch_size=10)
        ours = 0
        while relay.flush().published:
            with box._binding() as binding:
                claimed = binding.claim(queue, 5, 1 << 20)
                ours += binding.acknowledge(queue, claimed).true_count
        box.relay({"url": sqlite})
        assert len(theirs.published) + ours == 40
        assert {status for (status,) in columns(box, "status")} == {"published"}
        assert len(set(theirs.published)) == len(theirs.published)

    def test_what_its_relay_has_fetched_is_not_ours(self, box: Outbox, sqlite: str, queue: str) -> None:
        store(box, range(4), [queue])
        fetched = Store(box).fetch_unpublished(2)
        assert [json.loads(record.body)["data"]["order_id"] for record in fetched] == [0, 1]
        assert Outbox(box.url).relay({"url": sqlite}).messages == 0
        Store(box).mark_published([record.id for record in fetched])
        assert Outbox(box.url).relay({"url": sqlite}).messages == 2
        assert numbers_in(sqlite, queue) == [2, 3]

    def test_what_it_stores_we_publish_and_it_reads(self, box: Outbox, redis_server: Any, queue: str) -> None:
        made(box)
        order = EnvelopeCodec.make("urn:babel:orders:created", {"amount": "1.50"}, queue=queue)
        SdkOutbox(Store(box)).write(order)
        assert box.relay({"url": redis_server.url}).messages == 1
        found = RedisTransport(url=redis_server.url).pop(queue)
        assert found.body == EnvelopeCodec.encode(order)

    def test_what_we_store_it_publishes_and_we_read(self, box: Outbox, redis_server: Any, queue: str) -> None:
        bodies = [envelope(number, queue) for number in range(3)]
        with box._binding() as binding:
            binding.publish(queue, outgoing(bodies))
        relay = OutboxRelay(RedisTransport(url=redis_server.url), Store(box))
        assert relay.drain().published == 3
        assert columns(box, "status, picked_at") == [("published", None)] * 3
        with read_options({"url": redis_server.url, "queue": queue}).binding() as binding:
            assert binding.claim(queue, 10, 1 << 20).column("body").to_pylist() == bodies

    def test_relays_of_both_at_once_publish_each_row_once(
        self, box: Outbox, redis_server: Any, queue: str, tmp_path: Path
    ) -> None:
        queues = [f"{queue}-{number}" for number in range(3)]
        store(box, range(600), queues)
        published = in_processes(3, relayed_by_either, box.url, redis_server.url, str(tmp_path / "sdk"))
        assert (tmp_path / "sdk").exists()
        rest = Outbox(box.url).relay({"url": redis_server.url}).messages
        assert sum(published) + rest == 600
        for number, name in enumerate(queues):
            assert sorted(numbers_in(redis_server.url, name)) == list(range(number, 600, 3))

    def test_what_its_relay_published_before_it_died_is_published_again(
        self, box: Outbox, redis_server: Any, queue: str
    ) -> None:
        """That is its own guarantee; no other row is."""
        store(box, range(6), [queue])
        transport = RedisTransport(url=redis_server.url)
        for record in Store(box).fetch_unpublished(2):
            transport.publish(record.queue, record.body)
        eventually(lambda: box.relay({"url": redis_server.url}).messages == 6)
        assert numbers_in(redis_server.url, queue) == [0, 1, *range(6)]
        found = messages(redis_server.url, queue)
        assert found[:2] == found[2:4]


class TestSource:
    @pytest.mark.spark
    def test_spark_consumes_an_outbox_and_rows_stay(
        self, spark: Any, box: Outbox, queue: str, tmp_path: Path
    ) -> None:
        store(box, range(50), [queue])
        options = {"sql.layout": "outbox", "visibilityTimeout": "10s"}
        found = drain(spark, box.url, queue, tmp_path, **options)
        assert Counter(numbers(row for rows in found for row in rows)) == Counter(range(50))
        assert columns(box, "status") == [("published",)] * 50


def relayed_by_either(outbox: str, target: str, sdk: str) -> int:
    """In a process of its own: how many rows it published. The first to come is the SDK's relay."""
    try:
        Path(sdk).touch(exist_ok=False)
    except FileExistsError:
        return Outbox(outbox).relay({"url": target}).messages
    relay = OutboxRelay(RedisTransport(url=target), Store(Outbox(outbox)), batch_size=20)
    return int(relay.drain().published)


class Transport:
    """The SDK's transport: a list."""

    def __init__(self) -> None:
        self.published: list[str] = []

    def publish(self, queue: str, body: str) -> None:
        self.published.append(body)


class Store:
    """An `OutboxStore` of the SDK on our table, as its documentation asks: rows that it fetches are claimed."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def save(self, encoded: str, queue: str) -> str:
        with closing(self._connected()) as database:
            insert = "INSERT INTO outbox (queue, body) VALUES (?, ?)"
            return str(database.execute(insert, (queue, encoded)).lastrowid)

    def fetch_unpublished(self, limit: int) -> list[OutboxRecord]:
        with closing(self._connected()) as database:
            database.execute("BEGIN IMMEDIATE")
            rows = database.execute(
                "SELECT id, body, queue, attempts FROM outbox WHERE status = 'pending' AND picked_at IS NULL "
                "ORDER BY id LIMIT ?",
                (limit,),
            ).fetchall()
            database.executemany(
                "UPDATE outbox SET picked_at = datetime('now') WHERE id = ?", [(row[0],) for row in rows]
            )
            database.execute("COMMIT")
        return [OutboxRecord(str(row), body, queue, attempts) for row, body, queue, attempts in rows]

    def mark_published(self, ids: list[str]) -> None:
        self._change("UPDATE outbox SET status = 'published', picked_at = NULL WHERE id = ?", ids)

    def mark_failed(self, id: str, error: str) -> None:
        self._change("UPDATE outbox SET attempts = attempts + 1, picked_at = NULL WHERE id = ?", [id])

    def _change(self, statement: str, ids: list[str]) -> None:
        with closing(self._connected()) as database:
            database.execute("BEGIN IMMEDIATE")
            database.executemany(statement, [(row,) for row in ids])
            database.execute("COMMIT")

    def _connected(self) -> sqlite3.Connection:
        return sqlite3.connect(self._outbox.url.removeprefix("sqlite:///"), 60, isolation_level=None)


def killed_at(point: str, outbox: Outbox, url: str) -> bool:
    """Run a relay in a process of its own that dies at the point; whether it reached it."""
    return killed(_relay_and_die, point, outbox, url)


def _relay_and_die(point: str, outbox: Outbox, url: str) -> None:
    def reached(here: str) -> None:
        if here == point:
            die()

    def around(owner: Any, name: str, before: str, after: str) -> None:
        original = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            reached(before)
            result = original(*args, **kwargs)
            reached(after)
            return result

        setattr(owner, name, wrapped)

    around(SqlBinding, "claim", "before the claim", "after the claim")
    around(BaseBinding, "publish", "", "after the publish")
    around(SqlBinding, "acknowledge", "", "after the mark")
    outbox.relay({"url": url})
