"""The column functions, on a DataFrame, in SQL, and over Connect."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.errors import PythonException
from pyspark.sql.functions import col, length, lit, struct, when
from pyspark.sql.types import IntegerType, MapType, StringType

from babelqueue_spark import functions as bq
from babelqueue_spark.connector.rows.reading import ENVELOPE
from babelqueue_spark.errors import OptionError
from tests.envelope.bodies import ENVELOPE as FIELDS
from tests.envelope.bodies import META, body
from tests.envelope.test_decode import NASTY
from tests.functions.results import results
from tests.programs import CONNECT_ON_A_FREE_PORT, run
from tests.streams import publish

pytestmark = pytest.mark.spark

BODIES = [body(), *(one for one, _ in NASTY.values() if one is not None), body(attempts=3)]


@pytest.fixture
def bodies(spark: Any) -> Any:
    return spark.createDataFrame([(one,) for one in [*BODIES, None]], "value binary")


def only(spark: Any, column: Any, one: bytes | None = body()) -> Any:
    """What a column gives for one body."""
    [found] = spark.createDataFrame([(one,)], "value binary").select(column).collect()
    return found[0]


def message(**fields: str) -> Any:
    """A struct to encode."""
    given = {"job": "urn:a", "data": "{}", **fields}
    return struct(*(lit(value).alias(name) for name, value in given.items()))


def test_the_same_columns_through_the_source_and_the_function(
    spark: Any, bodies: Any, redis_server: Any, queue: str
) -> None:
    publish(redis_server.url, queue, BODIES)
    source = spark.read.format("babelqueue").options(url=redis_server.url, queue=queue).load()
    decoded = bodies.where("value IS NOT NULL").select(bq.decode("value").alias("e")).select("e.*")
    assert_df_equality(
        source.select(*ENVELOPE.fieldNames()), decoded, ignore_nullable=True, ignore_row_order=False
    )


@pytest.mark.slow
def test_the_same_results_over_connect(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "bodies.json").write_text(json.dumps([one.hex() for one in BODIES]))
    said = run(OVER_CONNECT, str(tmp_path / "bodies.json"), **CONNECT_ON_A_FREE_PORT)
    assert json.loads(said.splitlines()[-1]) == results(spark, [*BODIES, None])


OVER_CONNECT = """
import json, sys
from pyspark.sql import SparkSession
from tests.functions.results import results
spark = (SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    .config("spark.sql.session.timeZone", "UTC").getOrCreate())
bodies = [bytes.fromhex(one) for one in json.load(open(sys.argv[1]))] + [None]
print(json.dumps(results(spark, bodies)))
spark.stop()
"""


def test_strings_decode_like_bytes(spark: Any) -> None:
    frame = spark.createDataFrame([(body().decode(),)], "value string")
    [row] = frame.select(bq.decode("value").alias("e")).select("e.*").collect()
    assert (row.job, row.error, json.loads(row.data)) == (FIELDS["job"], None, FIELDS["data"])


def test_typed_data(spark: Any) -> None:
    one = body(data={"id": 7, "amount": "12.345", "at": 1749132727000, "tags": ["a", 1], "odd": {"x": "y"}})
    schema = "id BIGINT, amount DECIMAL(10,2), at TIMESTAMP, tags ARRAY<STRING>, odd MAP<STRING,BIGINT>"
    data = only(spark, bq.decode("value", schema)["data"], one)
    assert (data.id, str(data.amount), data.tags, data.odd) == (7, "12.35", ["a", "1"], {"x": None})
    assert data["at"].timestamp() == 1749132727


def test_what_was_decoded_can_be_encoded_again(spark: Any) -> None:
    bodies = [body(), body(attempts=3, data={"a": [1.50, "ö"]}), body(job="urn:a", meta={**META, "ext": [1]})]
    frame = spark.createDataFrame([(one,) for one in bodies], "value binary")
    encoded = frame.select(bq.encode(bq.decode("value")).alias("value"))
    assert_df_equality(encoded, frame, ignore_nullable=True)


def test_encode_fills_in_what_a_row_leaves_out(spark: Any) -> None:
    payload = struct(length("value").alias("size")).alias("data")
    made = json.loads(
        only(spark, bq.encode(struct(lit("urn:a").alias("job"), payload, lit("q").alias("queue"))))
    )
    assert (made["job"], made["data"], made["attempts"]) == ("urn:a", {"size": len(body())}, 0)
    assert (made["meta"]["queue"], made["meta"]["schema_version"]) == ("q", 1)
    assert len({made["trace_id"], made["meta"]["id"]}) == 2


def test_encode_makes_new_ids_for_each_row(spark: Any) -> None:
    rows = spark.range(50, numPartitions=3).select(bq.encode(message(queue="q")).alias("body")).collect()
    assert len({json.loads(row.body)["meta"]["id"] for row in rows}) == 50


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("data", {"data": '{"a":1,"a":2}', "queue": "q"}),
        ("meta.queue", {"data": "{}"}),
        ("job", {"job": " "}),
    ],
)
def test_encode_names_what_is_wrong(spark: Any, field: str, fields: dict[str, str]) -> None:
    with pytest.raises(PythonException, match=f"row 0: {re.escape(field)} "):
        only(spark, bq.encode(message(**fields)))


def test_a_null_struct_encodes_to_null(spark: Any) -> None:
    assert only(spark, bq.encode(when(lit(False), message(queue="q")))) is None


def test_dead_letter_and_back(spark: Any) -> None:
    one = body(attempts=2)
    dead = only(spark, bq.dead_letter("value", lit("failed"), lit("boom")), one)
    record = json.loads(dead)
    block = record.pop("dead_letter")
    assert record == json.loads(one)
    assert (block["reason"], block["error"], block["exception"]) == ("failed", "boom", None)
    assert (block["original_queue"], block["attempts"], block["lang"]) == ("orders", 2, "python")
    [row] = spark.createDataFrame([(dead,)], "value binary").select(bq.strip_dead_letter("value")).collect()
    assert row[0] == one.replace(b'"attempts":2', b'"attempts":0')


def test_dead_letter_takes_columns_and_skips_null_reasons(spark: Any) -> None:
    frame = spark.createDataFrame(
        [(body(), "late", 5, "elsewhere"), (b"\xff", "poison", 0, "q"), (body(), None, 1, "q")],
        "value binary, reason string, tries int, source string",
    )
    column = bq.dead_letter("value", "reason", attempts="tries", original_queue="source")
    late, poison, untouched = (row[0] for row in frame.select(column).collect())
    assert json.loads(late)["attempts"] == 5
    assert json.loads(late)["dead_letter"]["original_queue"] == "elsewhere"
    assert json.loads(poison)["raw_encoding"] == "base64"
    assert untouched == body()


def test_null_bodies_stay_null_in_edits(spark: Any) -> None:
    frame = spark.createDataFrame([(None,)], "value binary")
    [row] = frame.select(bq.dead_letter("value", lit("failed")), bq.strip_dead_letter("value")).collect()
    assert tuple(row) == (None, None)


@pytest.mark.parametrize("inbound", [None, b"no envelope"])
def test_what_follows_no_envelope_needs_a_queue(spark: Any, inbound: bytes | None) -> None:
    with pytest.raises(PythonException, match=r"meta\.queue is missing"):
        only(spark, bq.continue_trace("value", lit("urn:next"), lit("{}")), inbound)
    made = json.loads(only(spark, bq.continue_trace("value", lit("urn:next"), lit("{}"), lit("q")), inbound))
    assert (made["job"], made["meta"]["queue"]) == ("urn:next", "q")
    assert made["trace_id"]


def test_continue_trace(spark: Any) -> None:
    made = json.loads(only(spark, bq.continue_trace("value", lit("urn:next"), lit('{"a":1.50}'))))
    assert (made["job"], made["trace_id"], made["meta"]["queue"]) == (
        "urn:next",
        FIELDS["trace_id"],
        "orders",
    )
    assert made["meta"]["id"] != META["id"]
    assert made["attempts"] == 0
    elsewhere = only(spark, bq.continue_trace("value", lit("urn:next"), lit("{}"), lit("other")))
    assert json.loads(elsewhere)["meta"]["queue"] == "other"


def test_trace_context(spark: Any) -> None:
    header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    found = only(spark, bq.trace_context(lit("a-b"), lit(header)))
    assert tuple(found) == ("traceparent", header[3:35], header[36:52], "01")
    assert tuple(only(spark, bq.trace_context(lit("a-b"), lit(None)))) == ("trace_id", "ab", None, None)
    assert only(spark, bq.trace_context(lit(None), lit(None))) is None


@pytest.mark.parametrize(
    ("job", "pattern", "expected"),
    [
        ("urn:orders:created", "urn:orders:*", True),
        ("urn:orders:created", "urn:*:created", True),
        ("urn:orders:created", "urn:orders:created", True),
        ("urn:orders:", "urn:orders:*", True),
        ("urn:orders:created", "urn:orders", False),
        ("urn:a_b%c.d", "urn:a_b%c.d", True),
        ("urn:axb", "urn:a_b", False),
        ("urn:ab", "urn:a%", False),
        ("urn:a\\b", "urn:a\\*", True),
        ("urn:a\nb", "urn:*b", True),
        (None, "*", None),
    ],
)
def test_urn_matches(spark: Any, job: str | None, pattern: str, expected: bool | None) -> None:
    assert only(spark, bq.urn_matches(lit(job), pattern)) is expected


def test_urn_matches_a_column_of_patterns(spark: Any) -> None:
    frame = spark.createDataFrame(
        [("urn:a", "urn:*"), ("urn:a", "urn:b"), ("urn:a", None)], "job string, p string"
    )
    rows = frame.select(bq.urn_matches("job", col("p"))).collect()
    assert [row[0] for row in rows] == [True, False, None]


def test_the_functions_in_sql(spark: Any, bodies: Any) -> None:
    bq.register(spark)
    bodies.createOrReplaceTempView("bodies")
    sql = spark.sql("SELECT bq_decode(value) AS e, bq_validate(value) AS v FROM bodies")
    assert_df_equality(
        sql,
        bodies.select(bq.decode("value").alias("e"), bq.validate("value").alias("v")),
        ignore_nullable=True,
    )
    [row] = spark.sql(
        "SELECT bq_strip_dead_letter(bq_dead_letter(body, 'failed')) = body, bq_urn_matches('urn:a', 'urn:*'), "
        "bq_trace_context('a-b', null).trace_id, bq_validate(bq_continue_trace(body, 'urn:b', '{}')), "
        "bq_validate(bq_encode(named_struct('job', 'urn:a', 'data', '{}', 'queue', 'q'))) "
        f"FROM (SELECT CAST('{body().decode()}' AS BINARY) AS body)"
    ).collect()
    assert tuple(row) == (True, True, "ab", None, None)


def test_large_texts_and_counts(spark: Any) -> None:
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        assert only(spark, bq.trace_context(lit("a-b"), lit(None))).trace_id == "ab"
        dead = json.loads(only(spark, bq.dead_letter("value", lit("failed"), attempts=lit(3_000_000_000))))
        assert dead["attempts"] == 2**31 - 1
        assert only(spark, bq.decode("value")).error is None
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")


def test_encode_names_the_row_with_nulls_before_it(spark: Any) -> None:
    frame = spark.createDataFrame([(0,), (1,), (2,)], "n int").coalesce(1)
    rows = when(col("n") == 2, message(data="[]", queue="q"))
    with pytest.raises(PythonException, match="row 2: data"):
        frame.select(bq.encode(rows)).collect()


def test_maps_of_other_keys_than_strings_are_refused() -> None:
    with pytest.raises(OptionError, match="keys of JSON are strings"):
        bq.decode("value", MapType(IntegerType(), StringType()))
