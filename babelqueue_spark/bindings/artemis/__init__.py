"""ActiveMQ Artemis over AMQP 1.0: anycast queues.

Connection string: `artemis://[user:password@]host:port`, `artemis+ssl://` for TLS. Queues are anycast, and
made where they are missing if the broker allows; `address::queue` names a queue of another address.

`docs/brokers/artemis.md` has what follows as tables, and says more.

Features:
    a reader dies: its claims come back at once
    receipts: of one connection
    order: as published, for one reader task; released messages too
    delay: milliseconds, no limit, by scheduled delivery (`x-opt-delivery-time`)
    headers: application properties
    key: the message group (`group-id`, which JMS calls `JMSXGroupID`)
    browse: exact: what is ready, without what is claimed
    publish once: no; the broker can drop repeats, see *Duplicates*
    dead letters: queue `<queue>.dlq`; InitPHP's style `<queue>.failed`. The broker's own
        `dead-letter-address` still works for other consumers
    `delivery` column: `id` is the producer's message id, `count` the delivery count + 1 above 0, else
        unknown, `enqueued_at` the broker's time (`enable-ingress-timestamp`), else the creation time, `key`
        the message group
    `attempts` column: the larger of the body's count and the delivery count

Options, as `artemis.<name>`:
    timeout (30): seconds for an answer of the broker
    duplicate_detection (`false`): publish with ids by which the broker drops repeats; see *Duplicates*
    time_to_live_ms: milliseconds until a published message expires, to the `expiry-address`
    ssl_ca_certs (the system's): with `artemis+ssl://` only; on each host
    ssl_certfile, ssl_keyfile, ssl_password: a client's certificate
    ssl_check_hostname (`true`): whether the certificate must name its host
"""

from babelqueue_spark.bindings.artemis.binding import ArtemisBinding

__all__ = ["ArtemisBinding"]
