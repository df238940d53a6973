"""RabbitMQ queues over AMQP 0-9-1, classic and quorum.

Connection string: `amqp://[user:password@]host:port/vhost`, `amqps://` for TLS; pika's query parameters
(`?heartbeat=30`) are understood. Queues are declared durable and without arguments where they are missing;
existing ones are used as they are.

`docs/brokers/rabbitmq.md` has what follows as tables, and says more.

Features:
    a reader dies: its claims come back at once, to their former places, as redelivered
    receipts: of one connection
    order: as published, for one reader task; after redeliveries where the broker can
    delay: milliseconds, up to 40 days, at most 1 % late; see *Delays*
    headers: the header table, values as text
    keys: none
    browse: intrusive: takes messages and puts them back, then they count as redelivered
    publish once: no: repeats have the same `meta.id`s
    dead letters: `<queue>.dlq`; InitPHP's style `<queue>.failed`. A queue's own dead-letter policy still
        works
    `delivery` column: `id` is `message_id`, `redelivered` the broker's, `enqueued_at` the `timestamp`
        property, `count` `x-delivery-count` + 1 on quorum queues, on classic ones 1 or unknown; `key` is null

Options, as `rabbitmq.<name>`:
    exchange (the default exchange): publishes to this one, which must exist; then a publish declares no queue
    routing_key (the queue's name): with `rabbitmq.exchange` only
    delayed_exchange (none: wait queues): an exchange of type `x-delayed-message`; see *Delays*
    delay_queue_type (`classic`): of wait queues; `quorum` needs RabbitMQ 3.10; see *Delays*
    heartbeat (20): seconds; a silent broker's connection ends after twice as many and ten
    blocked_connection_timeout (60): seconds a publish waits while the memory or disk alarm is on
    socket_timeout, stack_timeout (10, 15): seconds
    client_name (`babelqueue-spark`): what the management page shows; or `connection_name`
    ssl_ca_certs, ssl_certfile, ssl_keyfile, ssl_password, ssl_check_hostname: with `amqps://` only; on each
        host
"""

from babelqueue_spark.bindings.rabbitmq.binding import RabbitBinding

__all__ = ["RabbitBinding"]
