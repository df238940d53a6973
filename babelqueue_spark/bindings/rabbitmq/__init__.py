"""RabbitMQ queues over AMQP 0-9-1, classic and quorum.

Connection string: `amqp://[user:password@]host:port/vhost`, `amqps://` for TLS; pika's query parameters
(`?heartbeat=30`) are understood. Queues are declared durable and without arguments where they are missing;
existing ones are used as they are.

`docs/brokers/rabbitmq.md` has what follows as tables, and says more.

Features:
    claim: a consumer whose prefetch is what the trigger may still take, by count and by bytes
    acknowledge: one frame with `multiple` for a claim, after the journal is written, and an answer of the
        broker
    a reader dies: its claims come back at once, to their former places, marked as redelivered
    receipts: of one connection: no other process can acknowledge
    order: as published, for one reader task; claims that came back go to their former places where they can
    delay: milliseconds, up to 40 days, at most 1 % late; see *Delays*
    headers: the header table, values as text
    keys: none
    browse: intrusive: takes the messages and puts them back, after which they count as redelivered
    publish once: no: a replayed batch is published again, with the same `meta.id` and `message_id`
    dead letters: `<queue>.dlq`; `<queue>.failed` with `deadLetterStyle=initphp`. A queue's own dead-letter
        policy still works
    `delivery` column: `id` is the `message_id`, `redelivered` what the broker says, `enqueued_at` the
        `timestamp` property; `count` is `x-delivery-count` + 1 on quorum queues, on classic ones 1 or
        unknown; `key` is null

Options, as `rabbitmq.<name>`:
    exchange (the default exchange): publishes to this one, which must exist; then no queue is declared for a
        publish
    routing_key (the queue's name): with `rabbitmq.exchange` only
    delayed_exchange (none: wait queues): an exchange of type `x-delayed-message` for messages with a delay
    delay_queue_type (`classic`): of wait queues; with `quorum` they keep what its queue does not take, and
        are not deleted; needs RabbitMQ 3.10
    heartbeat (20): seconds; the connection to a silent broker ends after twice as many and ten
    blocked_connection_timeout (60): seconds that a publish waits while the memory or disk alarm is on
    socket_timeout, stack_timeout (10, 15): seconds
    client_name (`babelqueue-spark`): what the management page calls the connection; or
        `connection_name`
    ssl_ca_certs, ssl_certfile, ssl_keyfile, ssl_password, ssl_check_hostname: with `amqps://` only; paths on
        the driver and on the executors
"""

from babelqueue_spark.bindings.rabbitmq.binding import RabbitBinding

__all__ = ["RabbitBinding"]
