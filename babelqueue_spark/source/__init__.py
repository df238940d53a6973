"""Reading queues: the data source, the stream reader, the browsing reader."""

from babelqueue_spark.source.datasource import BabelQueueDataSource

__all__ = ["BabelQueueDataSource"]
