"""Found by Spark itself: it registers the `DefaultSource` of every installed module named `pyspark_*`."""

from babelqueue_spark.datasource import BabelQueueDataSource as DefaultSource

__all__ = ["DefaultSource"]
