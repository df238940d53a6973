from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


@dp.table(table_properties={"pipelines.reset.allowed": "false"})
def orders():
    queue = {"url": "env:ORDERS_URL", "queue": "orders", "journalLocation": "/mnt/streams/orders/journal"}
    return spark.readStream.format("babelqueue").options(**queue).load()


dp.create_sink("copies", "babelqueue", {"url": "env:ORDERS_URL", "queue": "copies"})


@dp.append_flow(target="copies")
def copy():
    return spark.readStream.table("orders").where("error IS NULL").select("job", "data")


@dp.materialized_view
def latest_orders():
    return spark.sql("""
        SELECT get_json_object(data, '$.order_id') AS order_id, max_by(data, meta.created_at) AS data
        FROM orders WHERE error IS NULL GROUP BY 1
    """)
