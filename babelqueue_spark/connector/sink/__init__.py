"""Writing queues: rows become envelopes, tasks publish them."""

from babelqueue_spark.connector.sink.writer import QueueStreamWriter, QueueWriter

__all__ = ["QueueStreamWriter", "QueueWriter"]
