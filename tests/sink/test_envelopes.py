"""The sink hands the columns of an envelope along; they are what a reader of the body finds."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from babelqueue_spark.bindings.batches import ENVELOPE_COLUMN, OUTGOING
from babelqueue_spark.connector.options import write_options
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.connector.rows.writing import to_messages
from babelqueue_spark.envelope import ENVELOPE_SCHEMA, decode
from babelqueue_spark.errors import BabelQueueError
from tests.examples import examples
from tests.streams import envelope
from tests.worker.test_redrive import dead

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
MOMENTS = st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
META = st.fixed_dictionaries({"id": st.none() | TEXT, "lang": st.none() | TEXT, "created_at": MOMENTS})
ROW = st.fixed_dictionaries(
    {
        "job": TEXT.map(" urn:{}".format),
        "trace_id": st.none() | TEXT.map("t{}\n".format),
        "data": st.just("{}"),
        "attempts": st.none() | st.integers(0, 2**31 - 1),
        "meta": st.none() | META,
    }
)


def written(rows: list[dict[str, Any]], **more: Any) -> pa.RecordBatch:
    """The messages of one queue that rows become."""
    schema = pa.schema([field for field in ENVELOPE_SCHEMA if field.name in {*rows[0], *more}])
    return written_of(pa.RecordBatch.from_pylist([{**row, **more} for row in rows], schema))


def written_of(batch: pa.RecordBatch, url: str = "kafka://localhost:9092") -> pa.RecordBatch:
    options = write_options({"url": url, "queue": "orders"})
    with options.binding() as binding:
        [messages] = to_messages(batch, 0, IdSource("run"), options, binding).values()
    return messages


@examples(100)
@given(st.lists(ROW, min_size=1, max_size=5))
def test_the_columns_are_those_of_the_bodies(rows: list[dict[str, Any]]) -> None:
    messages = written(rows)
    handed = pa.RecordBatch.from_struct_array(messages.column(ENVELOPE_COLUMN.name))
    found = decode(messages.column("body"))
    for name in ("job", "trace_id", "attempts"):
        assert handed.column(name) == found.column(name)
    for name in ("id", "queue", "lang", "schema_version"):
        assert pc.struct_field(handed.column("meta"), name) == pc.struct_field(found.column("meta"), name)
    moments = (pc.struct_field(batch.column("meta"), "created_at") for batch in (handed, found))
    handed_moments, found_moments = (each.cast(pa.timestamp("ms", "UTC"), safe=False) for each in moments)
    assert handed_moments == found_moments


def test_dead_letters_are_read_out_of_their_bodies() -> None:
    assert written([{"job": "urn:a", "data": "{}"}], dead_letter={"reason": "failed"}).schema == OUTGOING


@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")], ids=["bigint", "ms", "us"]
)
def test_created_at_may_be_milliseconds_since_1970(kind: pa.DataType) -> None:
    moment = pa.scalar(1_749_132_727_123, pa.int64())
    meta = pa.array(
        [
            {
                "created_at": (
                    moment if kind == pa.int64() else moment.cast(pa.timestamp("ms", "UTC")).cast(kind)
                ).as_py()
            }
        ],
        pa.struct([("created_at", kind)]),
    )
    rows = pa.RecordBatch.from_pydict({"job": ["urn:a"], "data": ["{}"], "meta": meta})
    [body] = written_of(rows).column("body").to_pylist()
    assert b'"created_at":1749132727123}' in body


def test_deliver_at_may_be_milliseconds_since_1970() -> None:
    at = pa.array([time.time_ns() // 1_000_000 + 60_000], pa.int64())
    rows = pa.RecordBatch.from_pydict({"job": ["urn:a"], "data": ["{}"], "deliver_at": at})
    [delay] = written_of(rows, "sqlite:////unused/queue.db").column("delay").to_pylist()
    assert 50_000 < delay <= 60_000


def test_attempts_beyond_their_type_name_the_row() -> None:
    rows = pa.RecordBatch.from_pydict({"job": ["urn:x"] * 2, "data": ["{}"] * 2, "attempts": [0, 2**40]})
    with pytest.raises(BabelQueueError, match="row 1 has 1099511627776 attempts, but they are from 0 to"):
        written_of(rows)


def test_a_block_that_came_with_a_message_brings_no_edited_payload_back() -> None:
    """Whoever sends a message may give it a block: what a mask hid must stay hidden."""
    body = dead(envelope(1, "orders", data={"card": "4111"}), "billing")
    read = decode(pa.array([body], pa.binary()))
    columns = {name: read.column(name) for name in ("job", "trace_id", "dead_letter")}
    columns |= {"body": pa.array([body], pa.binary()), "queue": pa.array(["orders"])}

    def copied(data: str) -> bytes:
        rows = pa.RecordBatch.from_pydict({**columns, "data": pa.array([data])})
        [copy] = written_of(rows).column("body").to_pylist()
        return bytes(copy)

    [data] = read.column("data").to_pylist()
    assert copied(data) == body
    masked = copied('{"card":"***"}')
    assert b"4111" not in masked
    [again] = decode(pa.array([masked], pa.binary())).to_pylist()
    assert (again["data"], again["error"], again["dead_letter"]) == ('{"card":"***"}', None, None)


def test_a_copy_that_names_no_queue_says_so_in_its_block() -> None:
    """Not what the block says that came with it: `billing` never failed it."""
    body = pa.array([dead(envelope(1, "orders"), "billing")], pa.binary())
    read = decode(body)
    columns = {name: read.column(name) for name in ("job", "trace_id", "data", "dead_letter")}
    rows = pa.RecordBatch.from_pydict({**columns, "body": body, "queue": pa.array(["orders:delayed"])})
    options = write_options({"url": "redis://127.0.0.1:1", "queue": "orders"})
    with options.binding() as binding:
        found = to_messages(rows, 0, IdSource("run"), options, binding, dead_letters=True)
    [letter] = decode(found["orders.dlq"].column("body")).column("dead_letter").to_pylist()
    assert (letter["reason"], letter["original_queue"]) == ("no_queue", "orders")
