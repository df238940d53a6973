"""Writing queues, on each broker."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from babelqueue.codec import EnvelopeCodec

from tests.servers.rabbitmq import RabbitServer
from tests.streams import WAIT, backlog, envelope, publish
from tests.worker.test_redrive import dead

pytestmark = pytest.mark.spark


def write(frame: Any, url: str, queue: str | None = None, **options: Any) -> None:
    named = {"queue": queue} if queue else {}
    frame.write.format("babelqueue").options(url=url, **named, **options).mode("append").save()


def browse(spark: Any, url: str, queue: str) -> list[Any]:
    return spark.read.format("babelqueue").options(url=url, queue=queue).load().collect()


def test_job_and_data_are_all_it_needs(spark: Any, url: str, queue: str) -> None:
    frame = spark.createDataFrame([("urn:babel:orders:created", '{"n": 1.50}')], "job string, data string")
    write(frame, url, queue)
    [row] = browse(spark, url, queue)
    assert row.error is None
    assert (row.job, row.data, row.attempts, row.meta.queue) == (
        "urn:babel:orders:created",
        '{"n": 1.50}',
        0,
        queue,
    )
    accepted = EnvelopeCodec.decode(bytes(row.body).decode())
    assert EnvelopeCodec.accepts(accepted)
    assert len(row.meta.id) == len(row.trace_id) == 36
    assert row.meta.id != row.trace_id


def test_what_is_given_is_honoured(spark: Any, url: str, queue: str) -> None:
    frame = spark.sql(f"""
        SELECT 'urn:x' AS urn, named_struct('a', 1, 'b', CAST(NULL AS STRING), 'm', map('k', array(1, 2))) AS data,
               'trace' AS trace_id, 4 AS attempts, '{queue}' AS queue,
               named_struct('id', 'mine', 'lang', 'go', 'created_at', TIMESTAMP '2026-01-02 03:04:05Z',
                            'extra', map('shard', '7')) AS meta""")
    write(frame, url)
    [row] = browse(spark, url, queue)
    assert json.loads(bytes(row.body)) == {
        "job": "urn:x",
        "trace_id": "trace",
        "data": {"a": 1, "m": {"k": [1, 2]}},
        "meta": {
            "id": "mine",
            "queue": queue,
            "lang": "go",
            "schema_version": 1,
            "created_at": 1767323045000,
            "shard": 7,
        },
        "attempts": 4,
    }


def test_rows_go_to_the_queue_they_name(spark: Any, url: str, queue: str) -> None:
    rows = [("urn:x", "{}", f"{queue}-{n % 3}") for n in range(30)]
    write(spark.createDataFrame(rows, "job string, data string, queue string"), url)
    assert [backlog(url, f"{queue}-{n}") for n in range(3)] == [10, 10, 10]


def test_a_row_that_names_what_is_no_queue_stops_no_other(spark: Any, redis_server: Any, queue: str) -> None:
    rows = [("urn:x", "{}", queue), ("urn:y", '{"n": 1}', f"{queue}:delayed"), ("urn:z", "{}", queue)]
    frame = spark.createDataFrame(rows, "job string, data string, queue string").coalesce(1)
    write(frame, redis_server.url, queue)
    assert [row.job for row in browse(spark, redis_server.url, queue)] == ["urn:x", "urn:z"]
    [letter] = browse(spark, redis_server.url, f"{queue}.dlq")
    assert (letter.job, letter.data) == ("urn:y", '{"n": 1}')
    assert (letter.dead_letter.reason, letter.dead_letter.original_queue) == ("no_queue", queue)
    assert f"'{queue}:delayed' is not the name of a queue" in letter.dead_letter.error
    with pytest.raises(Exception, match=f"row 1 cannot be published: '{queue}:delayed'"):
        write(frame, redis_server.url)


def test_a_read_can_be_written_to_another_queue(spark: Any, url: str, queue: str) -> None:
    publish(url, queue, [envelope(n, queue, attempts=n) for n in range(5)])
    frame = spark.read.format("babelqueue").options(url=url, queue=queue).load()
    write(frame.drop("headers", "queue"), url, f"{queue}-copy")
    before, after = browse(spark, url, queue), browse(spark, url, f"{queue}-copy")
    assert [bytes(row.body) for row in before] == [bytes(row.body) for row in after]


def test_a_block_that_came_with_a_message_does_not_say_where_its_copy_goes(
    spark: Any, redis_server: Any, queue: str
) -> None:
    url, copies = f"{redis_server.url[:-1]}2", f"{redis_server.url[:-1]}3"
    billing = f"{queue}-billing"
    stray, letter = (dead(envelope(n, queue), name) for n, name in enumerate([billing, queue]))
    publish(url, queue, [stray])
    publish(url, f"{queue}.dlq", [letter])
    for name in (queue, f"{queue}.dlq"):
        write(spark.read.format("babelqueue").options(url=url, queue=name).load(), copies)
    assert backlog(copies, f"{billing}.dlq") == 0
    for name, body in ((queue, stray), (f"{queue}.dlq", letter)):
        assert [bytes(row.body) for row in browse(spark, copies, name)] == [body]


def test_dead_letters_keep_their_bytes_and_go_to_the_dead_letter_queue(
    spark: Any, url: str, queue: str
) -> None:
    bodies = [b"\xff\xfe", b"not json", envelope(1, queue).replace(b'"attempts":0', b'"attempts": 2')]
    publish(url, queue, bodies)
    frame = spark.read.format("babelqueue").options(url=url, queue=queue).load()
    write(
        frame.selectExpr(
            "body",
            "queue",
            "attempts",
            "named_struct('reason', coalesce(error, 'failed'), 'error', 'why') AS dead_letter",
        ),
        url,
    )
    found = [json.loads(bytes(row.body)) for row in browse(spark, url, f"{queue}.dlq")]
    assert found[0]["raw"] == "//4="
    assert found[0]["raw_encoding"] == "base64"
    assert found[1]["raw"] == "not json"
    assert found[2]["data"] == {"order_id": 1}
    assert [one["dead_letter"]["reason"] for one in found] == ["poison", "poison", "failed"]
    assert all(one["dead_letter"]["original_queue"] == queue for one in found)
    assert found[2]["dead_letter"]["attempts"] == 2


def test_delayed_messages_come_when_they_are_due(spark: Any, url: str, queue: str) -> None:
    frame = spark.sql("SELECT 'urn:x' AS job, '{}' AS data, delay FROM VALUES ('1 hour'), (NULL) AS t(delay)")
    write(frame, url, queue)
    assert backlog(url, queue) == 1
    later = spark.sql("SELECT 'urn:x' AS job, '{}' AS data, TIMESTAMP '2100-01-01 00:00:00' AS deliver_at")
    write(later, url, queue)
    assert backlog(url, queue) == 1


def test_replayed_batch_publishes_once_with_the_same_ids(
    spark: Any, url: str, queue: str, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.json").write_text("\n".join(json.dumps({"n": n}) for n in range(3000)))
    frame = spark.readStream.schema("n INT").json(str(tmp_path / "in"))
    messages = frame.selectExpr("'urn:x' AS job", "to_json(struct(n)) AS data")

    def run() -> None:
        query = (
            messages.writeStream.format("babelqueue")
            .options(url=url, queue=queue, checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WAIT)

    run()
    first = sorted(row.meta.id for row in browse(spark, url, queue))
    assert len(set(first)) == 3000
    for file in (tmp_path / "checkpoint/commits").iterdir():
        file.unlink()
    run()
    assert sorted(row.meta.id for row in browse(spark, url, queue)) == first


def test_foreach_batch_replay_publishes_once(spark: Any, url: str, queue: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.json").write_text("\n".join(json.dumps({"n": n}) for n in range(10)))
    frame = spark.readStream.schema("n INT").json(str(tmp_path / "in"))

    def each(batch: Any, _: int) -> None:
        even = batch.where("n % 2 = 0").selectExpr("'urn:even' AS job", "to_json(struct(n)) AS data")
        odd = batch.where("n % 2 = 1").selectExpr("'urn:odd' AS job", "to_json(struct(n)) AS data")
        write(even, url, queue)
        write(odd, url, queue)

    for attempt in range(2):
        if attempt:
            shutil.rmtree(tmp_path / "checkpoint/commits")
        query = (
            frame.writeStream.foreachBatch(each)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WAIT)
    rows = browse(spark, url, queue)
    assert sorted(row.job for row in rows) == ["urn:even"] * 5 + ["urn:odd"] * 5
    assert len({row.meta.id for row in rows}) == 10


def test_a_transaction_publishes_once(spark: Any, url: str, queue: str) -> None:
    """What a function of foreachBatch says over Spark Connect, where Spark does not tell it."""
    rows = spark.range(10).selectExpr("'urn:x' AS job", "to_json(struct(id)) AS data", "NULL AS dead_letter")
    for version in (7, 7, 8):
        write(rows.coalesce(1), url, queue, txnAppId="copy", txnVersion=version)
    ids = [row.meta.id for row in browse(spark, url, queue)]
    assert len(ids) == len(set(ids)) == 20


def test_a_repeat_is_published_again_under_the_same_ids(
    spark: Any, rabbitmq_server: RabbitServer, queue: str
) -> None:
    """Where the broker has no transaction with a key."""
    rows = spark.range(10).selectExpr("'urn:x' AS job", "to_json(struct(id)) AS data")
    for _ in range(2):
        write(rows.coalesce(1), rabbitmq_server.url, queue, txnAppId="copy", txnVersion=7)
    ids = Counter(row.meta.id for row in browse(spark, rabbitmq_server.url, queue))
    assert list(ids.values()) == [2] * 10


def test_a_stream_has_its_own_transactions(spark: Any, url: str, queue: str, tmp_path: Path) -> None:
    rows = spark.readStream.format("rate").load().selectExpr("'urn:x' AS job", "'{}' AS data")
    given = {"url": url, "queue": queue, "txnAppId": "copy", "txnVersion": 7}
    with pytest.raises(Exception, match="a stream has its own"):
        rows.writeStream.format("babelqueue").options(
            **given, checkpointLocation=str(tmp_path / "checkpoint")
        ).trigger(availableNow=True).start().awaitTermination(WAIT)


@pytest.mark.parametrize(
    ("select", "says"),
    [
        ("'urn:x' AS jobb, '{}' AS data", "did you mean 'job'"),
        ("'{}' AS data", "needs a column 'job'"),
        ("'urn:x' AS job", "needs a column 'data'"),
        ("'' AS job, '{}' AS data", "job"),
        ("'urn:x' AS job, '[1]' AS data", "data"),
        ("'urn:x' AS job, '{\"a\":NaN}' AS data", "data"),
        ("'urn:x' AS job, named_struct('a', double('NaN')) AS data", "JSON cannot carry"),
        ("'urn:x' AS job, '{}' AS data, 'soon' AS delay", "a delay is a time such as"),
    ],
)
def test_what_cannot_be_written_is_a_clear_error(
    spark: Any, url: str, queue: str, select: str, says: str
) -> None:
    with pytest.raises(Exception, match=says):
        write(spark.sql(f"SELECT {select}"), url, queue)
    assert backlog(url, queue) == 0


def test_a_row_without_a_queue_and_an_overwrite_are_errors(spark: Any, url: str) -> None:
    frame = spark.sql("SELECT 'urn:x' AS job, '{}' AS data")
    with pytest.raises(Exception, match="names no queue"):
        write(frame, url)
    with pytest.raises(Exception, match="cannot be overwritten"):
        frame.write.format("babelqueue").options(url=url, queue="q").mode("overwrite").save()


def test_sql_says_that_it_keeps_no_headers(spark: Any, queue: str, tmp_path: Path) -> None:
    frame = spark.sql("SELECT 'urn:x' AS job, '{}' AS data, map('traceparent', 'x') AS headers")
    with pytest.raises(Exception, match="keeps no headers"):
        write(frame, f"sqlite:///{tmp_path}/q.db", queue)
