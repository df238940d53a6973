"""Azure Service Bus: queues, topics and their subscriptions, with and without sessions.

Connection string: as the portal shows it (`Endpoint=sb://…;SharedAccessKeyName=…;SharedAccessKey=…`), or
`sb://NAMESPACE.servicebus.windows.net` for Azure AD. A queue is named by its path: `orders`,
`events/Subscriptions/audit`, `orders/$DeadLetterQueue`; a topic, for writes, by its name. Nothing is created.

`docs/brokers/servicebus.md` has what follows as tables, and says more.

Features:
    a reader dies: its claims come back after the lock duration, counted as deliveries
    receipts: durable while the lock lasts; with sessions, of one connection
    order: as enqueued, for one reader task, released messages too; with sessions within each
    delay: any, by scheduled enqueue time
    headers: application properties; the contract's win, except over a schema version in the headers
    key: session id
    browse: exact, by peek; shows locked messages too
    publish once: no; a queue with duplicate detection drops repeats within its window
    dead letters: queue `<queue>.dlq`; InitPHP's style `<queue>.failed`; of a subscription
        `<topic>.<subscription>.dlq`
    `delivery` column: `id` is the sequence number, `count` the service's delivery count + 1, `enqueued_at`
        the enqueued time, `key` the session id
    `attempts` column: the larger of the body's count and `delivery.count - 1`

Options, as `servicebus.<name>`:
    transport (`amqp`): `websocket`: port 443; or the client's `transport_type`, `AmqpOverWebsocket`
    custom_endpoint_address: connect here instead of to the namespace: `sb://host:port`
    connection_verify (certifi's): a file of certificates to trust, on each host
    tenant_id, client_id, client_secret (azure-identity's usual chain): a service principal; `client_id`
        alone: a managed identity. With a URL `sb://…`
    sessions (off): all queues of this reader or writer require sessions
    session_id (the queue's name): with `servicebus.sessions`, session of messages without a key
    duplicate_window (off): seconds for which queues with duplicate detection remember ids
    prefetch (500): most messages on their way to a claim, 1 to 50 000; fewer where they are large. Or
        `prefetch_count`
    max_wait_time (1): seconds a claim waits for its first message
    retry_total, try_timeout (3, 30): repeats of a failed request, within 45 seconds or `try_timeout`,
        whichever is longer; seconds of one
"""

from babelqueue_spark.bindings.servicebus.binding import ServiceBusBinding

__all__ = ["ServiceBusBinding"]
