"""Send, publish and write: routes, fan-out, dead letters, queues that fail, and stages."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from sqlalchemy import create_engine

from babelqueue_spark.errors import BabelQueueError, OptionError, QueuesFailedError
from babelqueue_spark.exchange import Exchange, Stages, Written, clears, derives
from tests.exchange.schedules import messages, numbers_in
from tests.streams import backlog, envelope, publish, run, stream

CREATED, EXPIRED, MAIL = "urn:babel:orders:created", "urn:babel:orders:expired", "urn:babel:mail:sent"
ROUTES = [("urn:babel:*", "rest"), ("urn:babel:orders:*", "orders"), (CREATED, "created")]
TXN = ("orders", 1)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/queue.db"


def exchange(url: str, stages: Stages | None = None, **options: str) -> Exchange:
    return Exchange({"url": url, **options}, ROUTES, stages)


def events(spark: Any, *jobs: str) -> DataFrame:
    rows = [(job, f'{{"order_id": {number}}}') for number, job in enumerate(jobs)]
    return spark.createDataFrame(rows, "job STRING, data STRING").repartition(2)


def ids_in(url: str, queue: str) -> set[tuple[str, str]]:
    return {(message["meta"]["id"], message["trace_id"]) for message in messages(url, queue)}


def test_send_takes_the_best_route_and_keeps_a_queue_that_is_named(spark: Any, url: str) -> None:
    sent = exchange(url).send(events(spark, CREATED, EXPIRED, MAIL, "urn:other"))
    assert {row.job: row.queue for row in sent.collect()} == {
        CREATED: "created",
        EXPIRED: "orders",
        MAIL: "rest",
        "urn:other": None,
    }
    named = events(spark, CREATED).withColumn("queue", F.lit("mine"))
    assert exchange(url).send(named).first().queue == "mine"


def test_publish_reaches_each_queue_under_one_id_and_trace(spark: Any, url: str) -> None:
    router = exchange(url)
    assert router.write(router.publish(events(spark, CREATED, MAIL)), TXN) == Written(
        {"created": 1, "orders": 1, "rest": 2}, {}
    )
    assert (numbers_in(url, "created"), numbers_in(url, "orders")) == ([0], [0])
    assert sorted(numbers_in(url, "rest")) == [0, 1]
    assert ids_in(url, "created") == ids_in(url, "orders")
    assert ids_in(url, "created") < ids_in(url, "rest")


def test_a_pattern_has_several_queues(spark: Any, url: str) -> None:
    router = Exchange({"url": url}, {CREATED: ["billing", "shipping"], "*": "rest"})
    frame = events(spark, CREATED)
    assert router.publish(frame).select("queue").collect() == [("billing",), ("shipping",), ("rest",)]
    assert router.send(frame).first().queue == "billing"


def test_rows_name_their_queues_for_publish(spark: Any, url: str) -> None:
    """As a router sees it that is given the message: by a column, which any function of the row can make."""
    router = exchange(url)
    frame = events(spark, CREATED, MAIL, EXPIRED)
    by_content = "CASE job WHEN '{0}' THEN {1} WHEN '{2}' THEN {3} END"
    several = by_content.format(CREATED, "array('mine', 'ours', 'mine')", MAIL, "array()")
    named = router.publish(frame.withColumn("queue", F.expr(several)))
    assert sorted(named.select("job", "queue").collect()) == sorted(
        [(CREATED, "mine"), (CREATED, "ours"), (MAIL, None), (EXPIRED, "orders"), (EXPIRED, "rest")]
    )
    assert router.write(named).dead_letters == {"no_route": 1}
    assert ids_in(url, "mine") == ids_in(url, "ours")
    one = router.publish(frame.withColumn("queue", F.expr(by_content.format(CREATED, "'mine'", MAIL, "''"))))
    assert [row.queue for row in one.where(F.col("job") == CREATED).collect()] == ["mine"]
    assert [row.queue for row in one.where(F.col("job") == MAIL).collect()] == ["rest"]
    read = frame.withColumns({"queue": F.lit("orders"), "error": F.lit(None).cast("string")})
    assert sorted(row.queue for row in router.publish(read.where(F.col("job") == CREATED)).collect()) == [
        "created",
        "orders",
        "rest",
    ]


def test_publish_keeps_ids_that_are_there(spark: Any, url: str) -> None:
    meta = F.expr("named_struct('id', 'mine', 'extra', map('causation', '\"c\"'))")
    frame = events(spark, CREATED).withColumns({"meta": meta, "trace_id": F.lit("trace")})
    router = exchange(url)
    router.write(router.publish(frame))
    assert ids_in(url, "rest") == ids_in(url, "orders") == {("mine", "trace")}
    assert messages(url, "rest")[0]["meta"]["causation"] == "c"


def test_a_repeat_of_a_transaction_publishes_nothing_more(spark: Any, url: str) -> None:
    router = exchange(url)
    for _ in range(2):
        router.write(router.publish(events(spark, CREATED, EXPIRED, MAIL)), TXN)
    assert sorted(numbers_in(url, "rest")) == [0, 1, 2]
    router.write(router.publish(events(spark, CREATED)), ("orders", 2))
    assert sorted(numbers_in(url, "rest")) == [0, 0, 1, 2]


def test_what_has_no_route_is_a_dead_letter(spark: Any, url: str) -> None:
    router = exchange(url)
    assert router.write(router.send(events(spark, MAIL, "urn:other"))).dead_letters == {"no_route": 1}
    [letter] = messages(url, "unrouted.dlq")
    assert (letter["job"], letter["dead_letter"]["reason"]) == ("urn:other", "no_route")
    router = exchange(url, queue="inbox")
    router.write(router.send(events(spark, "urn:other")))
    assert len(messages(url, "inbox.dlq")) == 1


def test_what_names_no_queue_is_a_dead_letter(spark: Any, redis_server: Any, queue: str) -> None:
    router = exchange(redis_server.url, queue=queue)
    named = events(spark, CREATED, MAIL).withColumn(
        "queue", F.when(F.col("job") == MAIL, F.lit(f"{queue}:processing")).otherwise(F.lit(queue))
    )
    assert router.write(router.send(named)) == Written({queue: 1}, {"no_queue": 1})
    [letter] = messages(redis_server.url, f"{queue}.dlq")
    assert (letter["job"], letter["dead_letter"]["original_queue"]) == (MAIL, queue)


def test_a_queue_that_fails_does_not_stop_the_others_and_a_repeat_publishes_it(spark: Any, url: str) -> None:
    router = exchange(url)
    assert backlog(url, "orders") == 0  # makes the tables
    database = create_engine(url)
    refuse = "BEFORE INSERT ON jobs WHEN NEW.queue = 'orders' BEGIN SELECT RAISE(ABORT, 'closed today'); END"
    with database.begin() as connection:
        connection.exec_driver_sql(f"CREATE TRIGGER refuse {refuse}")
    with pytest.raises(QueuesFailedError, match=r"1 queues failed, .*closed today") as raised:
        router.write(router.publish(events(spark, CREATED)), TXN)
    assert [*raised.value.failed] == ["orders"]
    assert raised.value.done == Written({"created": 1, "rest": 1})
    assert [numbers_in(url, queue) for queue in ("created", "orders", "rest")] == [[0], [], [0]]
    with database.begin() as connection:
        connection.exec_driver_sql("DROP TRIGGER refuse")
    database.dispose()
    router.write(router.publish(events(spark, CREATED)), TXN)
    assert [numbers_in(url, queue) for queue in ("created", "orders", "rest")] == [[0], [0], [0]]


@pytest.mark.parametrize("way", ["send", "publish"])
def test_rows_that_were_read_go_by_their_routes_and_invalid_ones_become_dead_letters(
    spark: Any, url: str, tmp_path: Path, way: str
) -> None:
    invalid = [b"no \xff envelope", envelope(2, data=[])]
    publish(
        url, "inbox", [envelope(0), invalid[0], envelope(1, job=EXPIRED), invalid[1], envelope(3, job="x")]
    )
    router = exchange(url, Stages(bind={"*": derives()}))
    written: list[Written] = []
    run(
        stream(spark, url, "inbox", tmp_path),
        tmp_path,
        lambda rows, batch: written.append(router.write(getattr(router, way)(rows), ("inbox", batch))),
    )
    sent = {"created": 1, "orders": 1} if way == "send" else {"created": 1, "orders": 2, "rest": 2}
    assert written == [Written(sent, {"poison": 2, "no_route": 1})]
    assert backlog(url, "inbox") == 0
    assert [letter["data"] for letter in messages(url, "unrouted.dlq")] == [{"order_id": 3}]
    raw, refused = messages(url, "inbox.dlq")
    assert base64.b64decode(raw["raw"]) == invalid[0]
    assert {**refused, "dead_letter": None} == {**json.loads(invalid[1]), "dead_letter": None}


def add(**columns: str) -> Any:
    expressions: Mapping[str, Any] = columns
    return lambda frame: frame.withColumns({name: F.expr(text) for name, text in expressions.items()})


def test_stages_bind_validate_and_enrich_in_this_order(spark: Any, url: str) -> None:
    stages = Stages(
        bind={"*": clears("trace_id", "meta")},
        validate={
            "urn:babel:orders:*": add(
                reason="CASE WHEN get_json_object(data, '$.order_id') = '1' THEN 'bad_order' END"
            )
        },
        enrich={
            CREATED: add(data="concat('{\"order_id\":', get_json_object(data, '$.order_id'), ',\"vat\":19}')")
        },
    )
    router = exchange(url, stages)
    frame = events(spark, CREATED, EXPIRED, MAIL).withColumn("trace_id", F.lit("forged"))
    assert router.write(router.send(frame)) == Written({"created": 1, "rest": 1}, {"bad_order": 1})
    [created] = messages(url, "created")
    assert created["data"] == {"order_id": 0, "vat": 19}
    assert created["trace_id"] != "forged"
    [letter] = messages(url, "orders.dlq")
    assert (letter["dead_letter"]["reason"], letter["data"]) == ("bad_order", {"order_id": 1})


def test_a_stage_sees_what_those_before_it_made(spark: Any, url: str) -> None:
    """Of several that match, in the order in which they are given."""
    then = "concat(substr(data, 1, length(data) - 1), ',\"{}\":1}}')".format
    refused = "CASE WHEN get_json_object(data, '$.{}') IS {} NULL THEN '{}' END".format
    stages = Stages(
        enrich={"*": add(data=then("c")), CREATED: add(data=then("d"))},
        validate={
            "*": add(reason=refused("b", "", "not_bound")),
            "urn:*": add(reason=refused("c", "NOT", "enriched")),
        },
        bind={CREATED: add(data=then("a")), "*": add(data=then("b"))},
    )
    router = exchange(url, stages)
    assert router.write(router.send(events(spark, CREATED))) == Written({"created": 1}, {})
    [created] = messages(url, "created")
    assert [*created["data"]] == ["order_id", "a", "b", "c", "d"]


def test_a_refused_message_passes_no_other_stage(spark: Any, url: str) -> None:
    refuses, changes = add(reason="'first'"), add(reason="'second'", data="'{}'")
    router = exchange(url, Stages(validate={CREATED: refuses, "*": changes}))
    assert router.write(router.send(events(spark, CREATED))).dead_letters == {"first": 1}
    assert messages(url, "created.dlq")[0]["data"] == {"order_id": 0}


def test_copies_share_id_and_trace_though_bind_clears_them(spark: Any, url: str) -> None:
    router = exchange(url, Stages(bind={"*": clears("trace_id", "meta")}))
    meta = F.expr("named_struct('id', 'forged')")
    frame = events(spark, CREATED).withColumns({"meta": meta, "trace_id": F.lit("forged")})
    router.write(router.publish(frame))
    [(message_id, trace_id)] = ids_in(url, "rest")
    assert ids_in(url, "orders") == ids_in(url, "created") == {(message_id, trace_id)}
    assert "forged" not in (message_id, trace_id)


@pytest.mark.parametrize(
    ("stages", "text"),
    [
        (Stages(enrich={"*": add(job="'urn:babel:forged'")}), "changed 'job' of 1 messages"),
        (Stages(enrich={"*": add(trace_id="'forged'")}), "changed 'trace_id' of 1 messages"),
        (Stages(bind={"*": lambda frame: frame.limit(0)}), "given 1 messages and returned 0"),
        (Stages(enrich={"*": lambda frame: frame.union(frame)}), "given 1 messages and returned 2"),
        (Stages(bind={"*": lambda frame: frame.select("job")}), "dropped columns that it does not know"),
        (Stages(validate={"*": lambda frame: frame}), "returns no column 'reason'"),
        (Stages(bind={"*": lambda frame: None}), "returns no DataFrame, but NoneType"),
    ],
    ids=["job", "trace_id", "fewer", "more", "columns", "no reason", "nothing"],
)
def test_a_stage_that_breaks_its_rules_is_an_error_and_nothing_is_written(
    spark: Any, url: str, stages: Stages, text: str
) -> None:
    router = exchange(url, stages)
    with pytest.raises(BabelQueueError, match=text):
        router.write(router.send(events(spark, CREATED)))
    assert messages(url, "created") == []


def test_routes_and_options_are_checked() -> None:
    for routes in (
        {},
        {"urn:a": ""},
        {" ": "q"},
        {"urn:a": []},
        {"urn:a": 7},
        {"urn:a": ["q", None]},
        "urn:a",
    ):
        with pytest.raises(OptionError, match="routes take URN patterns"):
            Exchange({"url": "redis://127.0.0.1:1"}, routes)
    with pytest.raises(OptionError, match="are an argument here"):
        exchange("redis://127.0.0.1:1", txnAppId="a", txnVersion="1")
