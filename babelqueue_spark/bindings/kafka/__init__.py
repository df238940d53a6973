"""Apache Kafka topics, read by offsets.

Connection string: `kafka://host:port`, several hosts with commas between, or those bare with `broker` =
`kafka`. A queue is a topic. Topics are made by the broker where it may.

`docs/brokers/kafka.md` has what follows as tables, and says more.

Features:
    read: by offsets, in Spark's own: a replay reads the same records
    journal: none: `journalLocation` is ignored
    a reader dies: the task or the batch is repeated
    order: within a partition
    delay: by retry tiers, up to the longest; without tiers none
    headers: record headers
    key: the record's key, as UTF-8
    browse: `spark.read` reads ranges: `startingOffsets`, `endingOffsets`
    publish once: by a transaction with an idempotency key; see *Writing once*
    dead letters: topic `<topic>.dlq`; InitPHP's style `<topic>.failed`
    `delivery` column: `id` is `partition:offset`, `enqueued_at` the record's time, `key` the key; others null
    `attempts` column: the number in the header `bq-attempts`, even a smaller one, else the body's

Options, as `kafka.<name>`:
    retry_tiers_ms: delays of `<topic>.retry.1` and so on, ascending, with commas; `default` is
        5000,30000,300000,1800000
    group.id (`babelqueue-spark`): whose offsets monitors read; one for each query
    timeout_seconds (30): for an answer or a confirm of the broker
    security.protocol, sasl.*, ssl.*: login and TLS, as in librdkafka
    compression.type, linger.ms, message.max.bytes, partitioner: of producers, these and others of librdkafka
    fetch.*, socket.*: of consumers and connections, these and others of librdkafka
    isolation.level (`read_committed`): `read_uncommitted` shows open and aborted transactions too
"""

from babelqueue_spark.bindings.kafka.binding import KafkaBinding

__all__ = ["KafkaBinding"]
