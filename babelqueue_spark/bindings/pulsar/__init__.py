"""Apache Pulsar topics, plain and partitioned, by a Shared subscription.

Connection string: `pulsar://host:port` or `pulsar+ssl://host:port`, several hosts with commas between. A
queue is a topic of `persistent://public/default/`, or a whole topic name. Subscription and topic are made
where they are missing, by readers and writers.

`docs/brokers/pulsar.md` has what follows as tables, and says more.

Features:
    a reader dies: its claims come back at once
    receipts: durable
    order: none
    delay: milliseconds, no limit, as exact as `delayedDeliveryTickTimeMillis` (by default a second)
    headers: properties
    key: the partition key
    browse: exact with `pulsar.admin_url`, else intrusive; see *Browsing*
    publish once: no: repeats have the same `meta.id`s
    dead letters: topic `<queue>.dlq`; InitPHP's style `<queue>.failed`. A consumer's own dead-letter policy
        still works
    `delivery` column: `id` is `ledger:entry:partition:place in the batch`, `count` the redelivery count + 1
        above 0, else unknown, `enqueued_at` the publish time, `key` the partition key
    `attempts` column: the larger of the sender's count (`bq-attempts`, else the body's) and the redelivery
        count

Options, as `pulsar.<name>`:
    subscription (`babelqueue`): the Shared subscription; or `subscription_name`
    topic_prefix: before the queue's name, such as `persistent://shop/eu/`
    token: a JSON web token
    admin_url: `http://host:8080`, to count large backlogs, and to browse without taking
    batching (`false`): join messages to batches, see *Batches*; or `batching_enabled`
    operation_timeout_seconds, connection_timeout_ms (15, 10000): for an answer of the broker, and for a
        connection; a confirm may take twice the first
    tls_trust_certs_file_path (certifi's): with `pulsar+ssl://` or an `https://` admin URL; on each host
    tls_certificate_file_path, tls_private_key_file_path: a client's certificate
    tls_validate_hostname (`true`): whether the certificate must name its host
"""

from babelqueue_spark.bindings.pulsar.binding import PulsarBinding

__all__ = ["PulsarBinding"]
