"""Apache Pulsar topics, plain and partitioned, by a Shared subscription.

Connection string: `pulsar://host:port` or `pulsar+ssl://host:port`, several hosts with commas between. A
queue is a topic of `persistent://public/default/`, or a whole topic name. Subscription and topic are made
where they are missing, by readers and writers.

`docs/brokers/pulsar.md` has what follows as tables, and says more.

Features:
    claim: by a consumer of the Shared subscription `babelqueue`, with up to 5000 messages sent ahead
    acknowledge: by message id, after the journal is written, with an answer of the broker
    a reader dies: its claims come back at once, as its connection ends
    receipts: durable: another process acknowledges by the message's id
    order: none: a Shared subscription spreads messages over its consumers
    delay: milliseconds, without limit, as exact as the broker's tick (`delayedDeliveryTickTimeMillis`, a
        second by default)
    headers: properties
    key: the partition key
    browse: with `pulsar.admin_url` exact, by a reader; without it intrusive: takes the messages and puts them
        back, uncounted, and withholds them meanwhile. See *Browsing*
    publish once: no: a replayed batch is published again, with the same `meta.id`
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
    admin_url: `http://host:8080`, to know how large a large backlog is, and to browse without taking
    batching (`false`): join messages to batches, see *Batches*; or `batching_enabled`
    operation_timeout_seconds, connection_timeout_ms (15, 10000): until the broker must have answered, and a
        connection be made; a message must be confirmed in twice the first
    tls_trust_certs_file_path (certifi's): with `pulsar+ssl://` or an `https://` admin URL only; paths on the
        driver and on the executors
    tls_certificate_file_path, tls_private_key_file_path: a client's certificate, to log in with
    tls_validate_hostname (`true`): whether the broker's certificate must name its host
"""

from babelqueue_spark.bindings.pulsar.binding import PulsarBinding

__all__ = ["PulsarBinding"]
