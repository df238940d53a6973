"""Redis lists as BabelQueue, InitPHP and Laravel keep them.

Connection string: `redis://[user:password@]host:port/db`, or

- `redis+cluster://[user:password@]host:port,host:port`: some nodes of a Redis Cluster;
- `redis+sentinel://[user:password@]host:port,host:port/service/db`: Sentinels, and what they watch.

`rediss…` for TLS. The SDKs' query is understood: `?laravel=1`, `?prefix=queues:`, `?retry_after=90` (`null` =
never).

`docs/brokers/redis.md` has what follows as tables, and says more.

Features:
    a reader dies: its claims come back after `visibilityTimeout` (90 s) to the queue's tail, by another
        reader of the connector or the job `recover`
    receipts: durable
    order: as published, for one reader task
    delay: whole seconds (rounded up; up to one second short, as in the SDKs), no limit
    headers: default layout only
    browse: exact
    publish once: yes, for seven days
    dead letters: list `<queue>.dlq`; InitPHP's style `<queue>:failed`
    `delivery` column: `id`, `count`, `redelivered` and `enqueued_at` are null

Options, as `redis.<name>` or in the query:
    laravel, laravel_compat (off): Laravel's key layout; `?laravel=1` or `?laravel_compat=1` in the URL
    prefix (`queues:`): that layout's prefix of a queue's name
    retry_after (90): seconds a claim may stay unacknowledged, `null` = for ever, even when its reader dies;
        `visibilityTimeout` wins
    reclaim_idle (off): seconds; see *Messages without a deadline*
    username, password, db (from the URL): the login, and the database's number
    sentinel_username, sentinel_password (none): the login at Sentinels
    socket_timeout, socket_connect_timeout (30, 10; in a cluster 10, 5, for each node): seconds
    socket_keepalive, health_check_interval, client_name, protocol (redis-py's): handed to redis-py
    ssl_ca_certs, ssl_ca_path, ssl_certfile, ssl_keyfile, ssl_password, ssl_cert_reqs, ssl_check_hostname
        (redis-py's): with `rediss…` only
"""

from babelqueue_spark.bindings.redis.binding import RedisBinding

__all__ = ["RedisBinding"]
