"""Reading queues and logs: the stream readers and the browsing reader."""

from babelqueue_spark.deprecated import renamed

__getattr__ = renamed(__name__, {"BabelQueueDataSource": "babelqueue_spark.datasource:BabelQueueDataSource"})
