"""A stream reader in place of one that cannot be made."""

from __future__ import annotations

from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader

from babelqueue_spark.errors import BabelQueueError


class RefusedReader(DataSourceStreamReader):
    """Raises an error as soon as Spark asks it for anything.

    What `streamReader` raises itself, Spark's runner buries under an error of its own.
    """

    def __init__(self, error: BabelQueueError) -> None:
        self._error = error

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise self._error

    initialOffset: Any = _refuse
    latestOffset: Any = _refuse
    partitions: Any = _refuse
    read: Any = _refuse
