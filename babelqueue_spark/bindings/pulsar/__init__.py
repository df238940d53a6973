"""Apache Pulsar topics, plain and partitioned, by a Shared subscription.

Connection string: `pulsar://host:port` or `pulsar+ssl://host:port`, several hosts with commas between. A
queue is a topic of `persistent://public/default/`, or a whole topic name. Subscription and topic are made
where they are missing, by readers and writers.

`docs/brokers/pulsar.md` has what follows as tables, and says more.

Features:
    a reader dies: its claims come back at once
    receipts: durable
    order: none: a Shared subscription spreads messages
    delay: milliseconds, without limit, as exact as `delayedDeliveryTickTimeMillis` (a second by default)
    headers: properties
    key: the partition key
    browse: exact with `pulsar.admin_url`, else intrusive; see *Browsing*
    publish once: no: a replayed batch is published again, with the same `meta.id`s
    dead letters: topic `<queue>.dlq`; `<queue>.failed` with `deadLetterStyle=initphp`. A consumer's own
        dead-letter policy still works
    `delivery` column: `id` is `ledger:entry:partition:place in the batch`, `count` the redelivery count + 1
        where that is above 0, else unknown, `enqueued_at` the publish time, `key` the partition key
    `attempts` column: the larger of the sender's count (`bq-attempts`, else the body's) and the redelivery
        count

Options, as `pulsar.<name>`:
    subscription (`babelqueue`): the Shared subscription; or `subscription_name`
    topic_prefix: precedes the queue's name, such as `persistent://shop/eu/`
    token: a JSON web token; `env:NAME` and `file:/path` keep it out of plans
    admin_url: `http://host:8080`, for the size of a large backlog, and to browse without taking
    batching (`false`): join messages to batches, see *Batches*; or `batching_enabled`
    operation_timeout_seconds, connection_timeout_ms (15, 10000): until the broker must have answered, and a
        connection be made; a message must be confirmed in twice the first
    tls_trust_certs_file_path (certifi's): with `pulsar+ssl://` or an `https://` admin URL; on driver and
        executors
    tls_certificate_file_path, tls_private_key_file_path: a client's certificate, to log in with
    tls_validate_hostname (`true`): whether the broker's certificate must name its host
"""

from babelqueue_spark.bindings.pulsar.binding import PulsarBinding

__all__ = ["PulsarBinding"]
