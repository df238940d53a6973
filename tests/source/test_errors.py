"""What goes wrong first for a new user: each a line that says what to do and shows no secret."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from babelqueue_spark.testing import Proxy
from tests.brokers import SERVERS
from tests.streams import WAIT, run, stream

pytestmark = pytest.mark.spark


def line_of(error: BaseException) -> str:
    """The connector's own line in what Spark shows."""
    found = re.findall(r"babelqueue_spark\.errors\.\w+: (.*)", str(error))
    assert found, str(error)
    return str(found[-1])


def one_line_of(error: BaseException) -> str:
    """The connector's own line, where Spark shows no other error before, around or after it."""
    text = str(error)
    raised = [line for line in text.splitlines() if re.match(r"[\w.]+(Error|Exception): ", line)]
    assert len(raised) == text.count("Traceback (most recent call last)") == 1, text
    assert "s3cret" not in text
    return line_of(error)


def fails(spark: Any, url: str, folder: Path, **options: Any) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        run(stream(spark, url, "orders", folder, **options), folder, lambda df, _: df.collect())
    assert "s3cret" not in str(caught.value)
    return line_of(caught.value)


SECRET_URL = "redis://:s3cret@127.0.0.1:1/0"


def read(spark: Any, folder: Path, **options: Any) -> Any:
    return spark.read.format("babelqueue").options(url=SECRET_URL, queue="orders", **options)


def read_stream(spark: Any, folder: Path, **options: Any) -> Any:
    options = {"url": SECRET_URL, "queue": "orders", "journalLocation": str(folder / "journal"), **options}
    return spark.readStream.format("babelqueue").options(**options)


def write(spark: Any, folder: Path, **options: Any) -> None:
    rows = spark.sql("SELECT 'urn:babel:orders:created' AS job, '{}' AS data")
    rows.write.format("babelqueue").options(url=SECRET_URL, queue="orders", **options).mode("append").save()


def write_stream(spark: Any, folder: Path, **options: Any) -> None:
    rows = (
        spark.readStream.format("rate").load().selectExpr("'urn:babel:orders:created' AS job", "'{}' AS data")
    )
    options = {
        "url": SECRET_URL,
        "queue": "orders",
        "checkpointLocation": str(folder / "checkpoint"),
        **options,
    }
    ended(rows.writeStream.format("babelqueue").options(**options).start())


def ended(query: Any) -> None:
    try:
        query.awaitTermination(WAIT)
    finally:
        query.stop()


INVALID = [
    ({"numPartition": "2"}, "did you mean 'numPartitions'"),
    ({"redis.socket_timout": "1s"}, "redis.socket_timout is unknown"),
    ({"redis.socket_timeout": "soon"}, "redis.socket_timeout has the value 'soon'"),
]


@pytest.mark.parametrize("reading", [read, read_stream])
@pytest.mark.parametrize(("option", "says"), INVALID)
def test_load_refuses_invalid_options(
    spark: Any, tmp_path: Path, reading: Any, option: dict[str, str], says: str
) -> None:
    reader = reading(spark, tmp_path, **option)
    with pytest.raises(Exception, match="BABELQUEUE_INVALID_OPTION") as caught:
        reader.load()
    assert says in one_line_of(caught.value)


@pytest.mark.parametrize("writing", [write, write_stream])
def test_a_write_refuses_invalid_options_on_the_driver(spark: Any, tmp_path: Path, writing: Any) -> None:
    with pytest.raises(Exception, match="Failed to initialize Python data source writer") as caught:
        writing(spark, tmp_path, **{"redis.socket_timout": "1s"})
    assert "redis.socket_timout is unknown" in one_line_of(caught.value)


@pytest.mark.parametrize(
    ("schema", "option", "says"),
    [
        ("order_id BIGINT", {}, "typed data column"),
        ("job STRING", {"redis.socket_timout": "1s"}, "redis.socket_timout is unknown"),
        ("job STRING", {"journalLocation": "journal"}, "'journalLocation'"),
    ],
)
def test_what_spark_tells_no_earlier_is_refused_at_the_start(
    spark: Any, tmp_path: Path, schema: str, option: dict[str, str], says: str
) -> None:
    """With a schema Spark asks for no reader at `load()`."""
    rows = read_stream(spark, tmp_path, **option).schema(schema).load()
    with pytest.raises(Exception, match="BABELQUEUE_INVALID_OPTION") as caught:
        ended(
            rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        )
    assert says in one_line_of(caught.value)


def test_a_batch_with_an_unknown_column(spark: Any, tmp_path: Path) -> None:
    rows = read(spark, tmp_path).schema("order_id BIGINT").load()
    with pytest.raises(Exception, match="BABELQUEUE_INVALID_OPTION") as caught:
        rows.collect()
    assert "typed data column" in one_line_of(caught.value)


@pytest.mark.server
def test_wrong_password(spark: Any, tmp_path: Path) -> None:
    from tests.servers import RedisServer

    with RedisServer(password="right") as server:
        url = server.url.replace("right", "s3cret")
        assert "s3cret" in url
        assert "password" in fails(spark, url, tmp_path).lower()


def test_unreachable_server(spark: Any, tmp_path: Path) -> None:
    said = fails(spark, "redis://:s3cret@127.0.0.1:1/0", tmp_path)
    assert "127.0.0.1:1" in said


@pytest.mark.parametrize(
    ("broker", "options"),
    [
        ("redis", {"redis.socket_timeout": "1s"}),
        ("servicebus", {"servicebus.try_timeout": "1s", "servicebus.retry_total": "0"}),
    ],
)
def test_a_broker_that_falls_silent_ends_the_query(
    spark: Any, request: pytest.FixtureRequest, tmp_path: Path, broker: str, options: dict[str, str]
) -> None:
    """On the driver, which asks for the backlog in a process and a thread of Spark's."""
    server = request.getfixturevalue(SERVERS[broker])
    with Proxy("127.0.0.1", server.port) as proxy:
        url = server.url.replace(server.address, proxy.address)
        rows = stream(spark, url, f"orders-{uuid.uuid4().hex}", tmp_path, **options)
        query = answered(
            rows.writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="100 milliseconds")
        )
        proxy.freeze()
        with pytest.raises(Exception, match=proxy.address) as caught:
            assert not query.awaitTermination(60), "the query has not ended"
        assert "did not answer in time" in line_of(caught.value)


def answered(writer: Any) -> Any:
    """A query that its broker answers; started again while a busy machine makes its impatient client give up."""
    deadline = time.monotonic() + WAIT
    while True:
        query = writer.start()
        try:
            query.processAllAvailable()
        except Exception as error:
            if "did not answer in time" not in str(error) or time.monotonic() > deadline:
                raise
        else:
            return query


def test_unknown_option(spark: Any, url: str, tmp_path: Path) -> None:
    assert "did you mean 'numPartitions'" in fails(spark, url, tmp_path, numPartition=2)


def test_unknown_option_of_the_client(spark: Any, tmp_path: Path) -> None:
    assert "tabel" in fails(spark, f"sqlite:///{tmp_path}/q.db", tmp_path, **{"sql.tabel": "x"})


def test_journal_that_cannot_be_written(spark: Any, url: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = fails(spark, url, tmp_path, journalLocation=str(tmp_path / "file/journal"))
    assert "driver and executors" in said


def test_missing_journal(spark: Any, url: str) -> None:
    with pytest.raises(Exception, match="'journalLocation' is required") as caught:
        spark.readStream.format("babelqueue").options(url=url, queue="q").load().writeStream.format(
            "noop"
        ).start().processAllAvailable()
    one_line_of(caught.value)


def test_database_folder_that_is_not_there(spark: Any, tmp_path: Path) -> None:
    assert "not/there" in fails(spark, f"sqlite:///{tmp_path}/not/there/q.db", tmp_path)


def test_a_refused_query_shows_one_error(spark: Any, url: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="'meta' as struct<id:string>") as caught:
        run(stream(spark, url, "orders", tmp_path, schema="meta STRUCT<id STRING>"), tmp_path, print)
    one_line_of(caught.value)


def test_schema_with_an_unknown_column(spark: Any, url: str, tmp_path: Path) -> None:
    assert "typed data column" in fails(spark, url, tmp_path, schema="order_id BIGINT")


def test_missing_extra() -> None:
    program = (
        "import sys; sys.modules['redis'] = None\n"
        "from babelqueue_spark.bindings import binding_class\n"
        "binding_class('redis')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert 'pip install "babelqueue-spark[redis]"' in done.stderr.splitlines()[-1]
