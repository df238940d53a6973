"""The first import of each module that needs Spark: without PySpark, or with one too old, it says so."""

from babelqueue_spark.packages import require

require("the connector", "pyspark", "pyarrow")
