"""Which query calls a worker, and what its session does to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from babelqueue_spark.connector.options import resolved_config
from babelqueue_spark.errors import OptionError
from babelqueue_spark.storage import open_store

_IDLE = "spark.sql.execution.pyspark.udf.idleTimeoutSeconds"
_KILLS = "spark.sql.execution.pyspark.udf.killOnIdleTimeout"


def query_id(spark: Any, checkpoint: str | None, journal_config: Mapping[str, str]) -> str:
    """Return the id of the query whose batch is handled now.

    Args:
        spark: the session of the batch.
        checkpoint: the query's `checkpointLocation`, needed over Spark Connect.
        journal_config: of the object store where that lies, if it does.

    Raises:
        OptionError: no query calls, or its id is not known.
    """
    if isinstance(spark, SparkSession):
        query: str | None = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        if query is None:
            raise OptionError("a worker is called by foreachBatch: for a DataFrame by itself, use run(frame)")
        return query
    if checkpoint is None:
        raise OptionError(
            "Spark Connect does not tell a worker whose batches it gets: give it checkpoint=, the "
            "checkpointLocation of its query"
        )
    store = open_store(checkpoint, "checkpoint", resolved_config(journal_config))
    try:
        return str(json.loads(store.read("metadata") or "")["id"])
    except (ValueError, KeyError):
        raise OptionError(
            "the worker's checkpoint is not its query's, or out of reach of the server's Python: there "
            "is no query's id in its file 'metadata'"
        ) from None


def check_idle_timeout(spark: Any) -> None:
    """Raise `OptionError` where Spark kills silent tasks: one says nothing until its handlers returned."""
    idle = spark.conf.get(_IDLE, "0")
    if spark.conf.get(_KILLS, "false") == "true" and idle.strip("0smh") != "":
        raise OptionError(
            f"{_KILLS} is true, so Spark kills a task that says nothing for {idle}, as a worker's does until "
            "all its handlers have returned; each retry would run them again. Set it to false in this "
            "session: handler_timeout bounds handlers"
        )
