"""PostgreSQL and MariaDB: queue to DataFrame and back, against bare loops of their drivers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pymysql
from sqlalchemy import make_url

from babelqueue_spark.connector.options import write_options
from bench.redis import body, session
from bench.table import Row, in_turns, new_queue, rate, read_rate, row, write_rate
from tests.servers import Server
from tests.servers.mariadb import MariaDbServer
from tests.servers.postgresql import PostgresServer
from tests.streams import outgoing

MESSAGES = 80_000
PER_TRIGGER = 20_000
CHUNK = 1_000
BARE_MESSAGES = 30_000

NOW, CLAIMED, STALE = "2026-01-31 12:00:00", "2026-01-31 12:00:05", "2026-01-31 11:58:35"
COLUMNS = "queue, urn, trace_id, attempts, payload, available_at, reserved_at, created_at"
INSERT = f"INSERT INTO jobs ({COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s)"
READY = (
    "FROM jobs WHERE queue = 'bare' AND available_at <= %s AND (reserved_at IS NULL OR reserved_at <= %s) "
    f"ORDER BY available_at, reserved_at, id LIMIT {CHUNK} FOR UPDATE SKIP LOCKED"
)

Claim = Callable[[Any], list[int]]


def rows() -> list[Row]:
    """The SQL rows of the design."""
    bodies = [body(number) for number in range(MESSAGES)]
    spark = session()
    try:
        with PostgresServer() as postgres:
            measured = of_one(spark, postgres, "PostgreSQL", bodies, connected_postgres, postgres_claim)
            measured.append(open_transaction(postgres, bodies[:BARE_MESSAGES], measured[0]["theirs"]))
        with MariaDbServer() as mariadb:
            measured += of_one(spark, mariadb, "MariaDB", bodies, connected_mariadb, mariadb_claim)
    finally:
        spark.stop()
    return measured


def of_one(
    spark: Any,
    server: Server,
    name: str,
    bodies: list[bytes],
    connected: Callable[[str], Any],
    claim: Claim,
) -> list[Row]:
    """The rows of one server."""
    few = bodies[:BARE_MESSAGES]
    with connected(server.url) as connection:
        found = in_turns(
            {
                "write": lambda: write_rate(spark, server.url, few, repeats=1),
                "insert": lambda: rate(len(few), lambda: bare_insert(connection, few), repeats=1),
                "loop": lambda: loop_rate(connection, few, claim),
                "one": lambda: read(spark, server.url, bodies, 1),
                "two": lambda: read(spark, server.url, bodies, 2),
            }
        )
    bare = ("bare bulk claim and delete", found["loop"])
    return [
        row(f"{name} to DataFrame, two partitions", found["two"], *bare, 0.7),
        row(f"{name} to DataFrame, one partition", found["one"], *bare, None),
        row(f"DataFrame to {name}, one partition", found["write"], "bare executemany", found["insert"], None),
    ]


def open_transaction(server: Server, bodies: list[bytes], two_steps: float) -> Row:
    """What a claim that is an open transaction would give, beside the bare loop of two steps."""
    with connected_postgres(server.url) as connection:
        bare_loop(connection, postgres_claim)  # of what the last round inserted
        bare_insert(connection, bodies)
        one_step = rate(len(bodies), lambda: postgres_open_transaction(connection), repeats=1)
    return row(
        "PostgreSQL, bare DELETE ... RETURNING", one_step, "bare bulk claim and delete", two_steps, None
    )


def connected_postgres(url: str) -> Any:
    """A bare psycopg connection."""
    return psycopg.connect(url.replace("+psycopg", ""))


def connected_mariadb(url: str) -> Any:
    """A bare PyMySQL connection."""
    at = make_url(url)
    return pymysql.connect(
        host=at.host, port=at.port, user=at.username, password=at.password, database=at.database
    )


def publish(url: str, queue: str, bodies: list[bytes]) -> None:
    """By the binding, in batches of its size."""
    with write_options({"url": url}).binding() as binding:
        size = binding.capabilities.publish_batch
        for first in range(0, len(bodies), size):
            marker = f"{os.urandom(8).hex()}-{first}"
            binding.publish(queue, outgoing(bodies[first : first + size]), idempotency_key=marker)


def bare_insert(connection: Any, bodies: list[bytes]) -> None:
    """By the driver's executemany, in as many transactions."""
    with connection.cursor() as cursor:
        for first in range(0, len(bodies), 10_000):
            part = bodies[first : first + 10_000]
            cursor.executemany(
                INSERT, [("bare", "urn:x", "7b1c", 0, each.decode(), NOW, None, NOW) for each in part]
            )
            connection.commit()


def loop_rate(connection: Any, bodies: list[bytes], claim: Claim) -> float:
    """Messages a second of the bare loop over these alone."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM jobs WHERE queue = 'bare'")
    bare_insert(connection, bodies)
    return rate(len(bodies), lambda: bare_loop(connection, claim), repeats=1)


def bare_loop(connection: Any, claim: Claim) -> int:
    """Claim and delete until nothing is left, each a transaction; return how many there were."""
    moved = 0
    with connection.cursor() as cursor:
        while ids := claim(cursor):
            moved += len(ids)
            connection.commit()
            cursor.execute(
                f"DELETE FROM jobs WHERE id IN ({','.join(map(str, ids))}) AND reserved_at = %s", (CLAIMED,)
            )
            connection.commit()
        connection.commit()
    return moved


def postgres_claim(cursor: Any) -> list[int]:
    """One statement."""
    cursor.execute(
        f"UPDATE jobs SET reserved_at = %s FROM (SELECT id {READY}) AS claimed WHERE jobs.id = claimed.id "
        "RETURNING jobs.id, payload, created_at",
        (CLAIMED, CLAIMED, STALE),
    )
    return [found[0] for found in cursor.fetchall()]


def postgres_open_transaction(connection: Any) -> int:
    """Make the claim that we do not make: deleted at once, acknowledged by the commit."""
    moved, found = 0, [True]
    with connection.cursor() as cursor:
        while found:
            cursor.execute(
                f"DELETE FROM jobs USING (SELECT id {READY}) AS claimed WHERE jobs.id = claimed.id "
                "RETURNING jobs.id, payload, created_at",
                (CLAIMED, STALE),
            )
            found = cursor.fetchall()
            moved += len(found)
            connection.commit()
    return moved


def mariadb_claim(cursor: Any) -> list[int]:
    """Two statements: it has no UPDATE ... RETURNING."""
    cursor.execute(f"SELECT id, payload, created_at {READY}", (CLAIMED, STALE))
    ids = [found[0] for found in cursor.fetchall()]
    if ids:
        listed = ",".join(map(str, ids))
        cursor.execute(f"UPDATE jobs SET reserved_at = %s WHERE id IN ({listed})", (CLAIMED,))
    return ids


def read(spark: Any, url: str, bodies: list[bytes], partitions: int) -> float:
    """Messages a second of the batches after the first."""
    queue = new_queue()
    publish(url, queue, bodies)
    options = {"maxMessagesPerTrigger": PER_TRIGGER, "maxBytesPerTrigger": "1g", "numPartitions": partitions}
    with tempfile.TemporaryDirectory() as folder:
        return read_rate(spark, url, queue, len(bodies), Path(folder), **options)
