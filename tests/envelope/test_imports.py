"""The envelope knows neither Spark nor a broker."""

import subprocess
import sys


def test_importing_the_envelope_imports_neither_spark_nor_a_client() -> None:
    foreign = [
        "pyspark",
        "redis",
        "hiredis",
        "sqlalchemy",
        "psycopg",
        "pymysql",
        "pika",
        "boto3",
        "botocore",
        "pulsar",
        "confluent_kafka",
        "proton",
        "azure",
        "babelqueue",
    ]
    script = f"import sys, babelqueue_spark.envelope; print(sorted(set({foreign}) & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
