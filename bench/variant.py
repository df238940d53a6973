"""`try_parse_json(data)` beside `from_json` in Spark, on one core: what a read's payload costs as VARIANT."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from babelqueue_spark.catalog import Catalog
from bench.catalog import SCHEMA, URN, payload
from bench.from_json import seconds, session
from bench.table import Measured, Row, in_turns, row

PAYLOADS = 100_000
ROUNDS = 5


def rows() -> list[Row]:
    """The whole payload, and two members of it."""
    from pyspark.sql import functions as F  # noqa: N812

    spark = session()
    kind = Catalog({URN: SCHEMA}).data_type(URN).simpleString()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "payloads.parquet"
        pq.write_table(pa.table({"data": [payload(number) for number in range(PAYLOADS)]}), file)
        frame = spark.read.parquet(str(file))
        parsed = frame.select(F.try_parse_json("data").alias("data"))
        typed = frame.select(F.from_json("data", kind).alias("data"))
        works = {
            "scan": frame,
            "variant": parsed,
            "from_json": typed,
            "variant, two": parsed.selectExpr(
                "try_variant_get(data, '$.order_id', 'BIGINT')", "try_variant_get(data, '$.amount', 'DOUBLE')"
            ),
            "from_json, two": typed.select("data.order_id", "data.amount"),
        }
        for work in works.values():
            seconds(work)
        took = in_turns({name: partial(seconds, work) for name, work in works.items()}, ROUNDS)
    spark.stop()
    scan = took.pop("scan")
    rates = {
        name: Measured([PAYLOADS / (spent - scan) for spent in each.samples]) for name, each in took.items()
    }
    return [
        row(
            "try_parse_json(data), 400-byte payloads", rates["variant"], "from_json", rates["from_json"], None
        ),
        row(
            "two members, by try_variant_get",
            rates["variant, two"],
            "from_json of all members",
            rates["from_json, two"],
            None,
        ),
    ]
