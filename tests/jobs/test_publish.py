"""The job publish: JSON lines, files and tables to a queue."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.conftest import Run
from tests.streams import backlog, envelope
from tests.worker.queues import taken

WHOLE = envelope(1, "orders").replace(b'"order_id":1', b'"order_id": 1.50')
SHORT = b' {"urn": "urn:babel:orders:created", "data": {"order_id": 2.50}, "attempts": 3}'


def lines(folder: Path, *bodies: bytes) -> str:
    path = folder / "orders.jsonl"
    path.write_bytes(b"\n".join(bodies) + b"\n")
    return str(path)


def test_envelopes_stay_as_they_are_and_others_are_completed(
    sqlite: str, queue: str, tmp_path: Path, run: Run
) -> None:
    done = run("publish", "--url", sqlite, "--queue", queue, "--input", lines(tmp_path, WHOLE, b"", SHORT))
    assert (done.code, done.err) == (0, "")
    whole, short = taken(sqlite, queue, 2)
    assert whole == WHOLE
    assert short.endswith(SHORT[2:])
    completed = json.loads(short)
    assert completed["attempts"] == 3
    assert completed["meta"]["queue"] == queue
    assert completed["trace_id"]


def test_some_lines_of_a_compressed_file(sqlite: str, queue: str, tmp_path: Path, run: Run) -> None:
    path = tmp_path / "orders.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n".join(envelope(n) for n in range(25_000))))
    arguments = ["--start-line", "10001", "--end-line", "22000"]
    assert run("publish", "--url", sqlite, "--queue", queue, "--input", str(path), *arguments).code == 0
    numbers = [json.loads(body)["data"]["order_id"] for body in taken(sqlite, queue, 12_000)]
    assert numbers == list(range(10_000, 22_000))


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"hello", "poison"),
        (b'{"data":{}}', "missing_urn"),
        (b'{"job":"u","data":{},"attempts":"1"}', "poison"),
        (b'{"job":"u","data":{},"meta":{"schema_version":2}}', "unsupported_schema_version"),
        (b'{"job":"u","data":[1]}', "poison"),
    ],
)
def test_a_bad_line_ends_the_job_or_is_skipped(
    sqlite: str, queue: str, tmp_path: Path, run: Run, bad: bytes, reason: str
) -> None:
    arguments = ["publish", "--url", sqlite, "--queue", queue, "--input", lines(tmp_path, SHORT, bad, SHORT)]
    done = run(*arguments)
    assert done.code == 1
    assert done.err == (
        f"publish: line 2: {reason}; nothing is published; correct it, or use --skip-invalid\n"
    )
    assert backlog(sqlite, queue) == 0
    shown = run(*arguments, "--dry-run")
    assert (shown.code, shown.err) == (1, "publish: 1 are not valid: correct them, or use --skip-invalid\n")
    assert f"line 2: {reason}" in shown.out
    assert backlog(sqlite, queue) == 0
    assert run(*arguments, "--skip-invalid", "--dry-run").code == 0
    assert run(*arguments, "--skip-invalid").code == 0
    assert backlog(sqlite, queue) == 2


def test_it_says_where_to_go_on(sqlite: str, queue: str, tmp_path: Path, run: Run) -> None:
    path = lines(tmp_path, *(envelope(n) for n in range(10_000)), b"bad")
    done = run("publish", "--url", sqlite, "--queue", queue, "--input", path)
    assert done.err == (
        "publish: line 10001: poison; nothing is published from line 10001 on: resume with --start-line 10001; "
        "correct it, or use --skip-invalid\n"
    )
    assert backlog(sqlite, queue) == 10_000


def test_a_file_that_ends_too_early(sqlite: str, queue: str, tmp_path: Path, run: Run) -> None:
    path = tmp_path / "orders.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n".join(envelope(n) for n in range(10)))[:-20])
    done = run("publish", "--url", sqlite, "--queue", queue, "--input", str(path))
    assert done.code == 1
    assert "orders.jsonl.gz cannot be read" in done.err
    assert done.err.endswith("; nothing is published\n")


def test_a_file_that_is_not_there(sqlite: str, queue: str, tmp_path: Path, run: Run) -> None:
    done = run("publish", "--url", sqlite, "--queue", queue, "--input", str(tmp_path / "missing.jsonl"))
    assert done.code == 1
    assert "missing.jsonl cannot be read" in done.err


@pytest.mark.spark
def test_a_table_and_its_bad_rows(spark: Any, sqlite: str, queue: str, run: Run) -> None:
    frame = spark.sql(
        """SELECT * FROM VALUES ('urn:a', '{"n": 1.50}'), ('urn:a', ' {"n": 2}'), ('', '{}'), ('urn:a', '[1]'),
        ('urn:a', '{}, "x": 1'), (NULL, '{}'), ('urn:a', NULL) AS t(job, data)"""
    )
    frame.createOrReplaceTempView("things")
    arguments = ["publish", "--url", sqlite, "--queue", queue, "--table", "things"]
    done = run(*arguments)
    assert done.code == 1
    assert "2 rows missing_urn" in done.err
    assert run(*arguments, "--dry-run").code == 1
    assert run(*arguments, "--dry-run", "--skip-invalid").code == 0
    assert backlog(sqlite, queue) == 0
    assert run(*arguments, "--skip-invalid").code == 0
    assert sorted(json.loads(body)["data"]["n"] for body in taken(sqlite, queue, 2)) == [1.5, 2]


@pytest.mark.spark
def test_parquet_with_typed_data(spark: Any, sqlite: str, queue: str, tmp_path: Path, run: Run) -> None:
    frame = spark.range(3).selectExpr("'urn:a' AS urn", "struct(id AS order_id) AS data", "'t1' AS trace_id")
    frame.write.parquet(str(tmp_path / "orders"))
    arguments = ["--input", str(tmp_path / "orders"), "--format", "parquet"]
    assert run("publish", "--url", sqlite, "--queue", queue, *arguments).code == 0
    bodies = [json.loads(body) for body in taken(sqlite, queue, 3)]
    assert sorted(body["data"]["order_id"] for body in bodies) == [0, 1, 2]
    assert {body["trace_id"] for body in bodies} == {"t1"}


@pytest.mark.spark
def test_rows_that_are_no_messages(spark: Any, sqlite: str, queue: str, run: Run) -> None:
    spark.range(1).createOrReplaceTempView("numbers")
    done = run("publish", "--url", sqlite, "--queue", queue, "--table", "numbers")
    assert done.err == "publish: rows need the columns job (or urn) and data, but have id\n"
