"""A web page that shows queues, dead letters and running queries of this machine; the job `serve` runs it."""

import babelqueue_spark.needs_spark  # noqa: F401
