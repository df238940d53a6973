"""Former place of `babelqueue_spark.spark_kafka`."""

from babelqueue_spark.deprecated import renamed

__getattr__ = renamed(
    __name__,
    {
        "from_kafka": "babelqueue_spark.spark_kafka:from_kafka",
        "to_kafka": "babelqueue_spark.spark_kafka:to_kafka",
    },
)
