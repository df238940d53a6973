"""What the tables of the recipes hold: bodies of messages, and transactions."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

BETWEEN_TABLES = "between two tables"
"""A crash point: a batch is in the first of its tables."""
DELTA = {"delta": ["orders"], "tables": ["orders_created", "mails_sent", "others"]}
"""Recipe → its Delta tables, in the order in which a batch writes them."""
ICEBERG = {"iceberg": "orders", "merged": "orders_by_id"}
"""Recipe → its Iceberg table."""


def create_namespaces(spark: Any, folder: Path) -> dict[str, str]:
    """Format → a namespace for tables of a catalog, in any session with the same folder."""
    place = folder / "lake/delta/shop.db"
    spark.sql(f"CREATE DATABASE IF NOT EXISTS shop LOCATION '{place}'")
    for table in place.glob("*/_delta_log"):  # a session of a test remembers no tables of another
        name = table.parent.name
        spark.sql(f"CREATE TABLE IF NOT EXISTS shop.{name} USING delta LOCATION '{table.parent}'")
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.typed")
    return {"delta": "shop", "iceberg": "lake.typed"}


def bodies(spark: Any, recipe: str, folder: Path) -> Counter[bytes]:
    """The bodies in all tables of a recipe."""
    rows = [row for frame in _frames(spark, recipe, folder) for row in frame.select("body").collect()]
    return Counter(bytes(row.body) for row in rows)


def jobs(spark: Any, table: str, folder: Path) -> Counter[str | None]:
    """The URNs in a Delta table; None stands for an invalid message."""
    rows = spark.read.format("delta").load(str(delta(folder, table))).select("job", "error").collect()
    return Counter(None if row.error else row.job for row in rows)


def transactions(spark: Any, recipe: str, folder: Path) -> list[Counter[tuple[str, int]]]:
    """(query id, batch) of each commit, for each table that names them."""
    if recipe in DELTA:
        return [_of_delta(delta(folder, table)) for table in DELTA[recipe]]
    summaries = _iceberg(spark, recipe, folder, "#snapshots").select("summary").collect()
    prefix = "spark.sql.streaming."
    return [
        Counter(
            (row.summary[f"{prefix}queryId"], int(row.summary[f"{prefix}epochId"]))
            for row in summaries
            if f"{prefix}queryId" in row.summary
        )
    ]


def commits(recipe: str, folder: Path) -> int:
    """How many commits the log of a recipe's (first) table has, by its files alone."""
    if recipe in DELTA:
        return len(list(_log(delta(folder, DELTA[recipe][0]))))
    return len(list((folder / "lake/iceberg/shop" / ICEBERG[recipe]).glob("metadata/v*.json")))


def exist(recipe: str, folder: Path) -> bool:
    """Whether all tables of a recipe have a commit."""
    return commits(recipe, folder) > 0 and all(
        any(_log(delta(folder, table))) for table in DELTA.get(recipe, [])
    )


def forget_last_commit(checkpoint: Path) -> None:
    """Leave what a driver leaves that dies between the table's commit and Spark's."""
    last = max(checkpoint.glob("commits/[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink()


def delta(folder: Path, table: str) -> Path:
    return folder / "lake/delta" / table


def _frames(spark: Any, recipe: str, folder: Path) -> list[Any]:
    if recipe in DELTA:
        return [spark.read.format("delta").load(str(delta(folder, table))) for table in DELTA[recipe]]
    return [_iceberg(spark, recipe, folder)]


def _iceberg(spark: Any, recipe: str, folder: Path, of: str = "") -> Any:
    """By path: what a session has cached of its catalog may be old."""
    return spark.read.format("iceberg").load(f"{folder}/lake/iceberg/shop/{ICEBERG[recipe]}{of}")


def _of_delta(table: Path) -> Counter[tuple[str, int]]:
    actions = [json.loads(line) for commit in _log(table) for line in commit.read_text().splitlines()]
    found = [action["txn"] for action in actions if "txn" in action]
    return Counter((txn["appId"], txn["version"]) for txn in found)


def _log(table: Path) -> Any:
    return table.glob("_delta_log/" + "[0-9]" * 20 + ".json")
