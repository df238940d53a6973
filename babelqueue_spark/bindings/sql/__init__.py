"""SQL databases as InitPHP's PDO transport keeps its queues: the tables `jobs` and `jobs_failed`.

Connection string: a SQLAlchemy URL, `postgresql+psycopg://user:password@host/db`, `mariadb+pymysql://…` or
`mysql+pymysql://…`; TLS and time limits go into its query. SQLite (`sqlite:////srv/queue.db`) is embedded:
the file must lie where every reader and writer reaches it, on a disk of that machine, not on a network mount.

`docs/brokers/sql.md` has what follows as tables, and says more.

Features:
    a reader dies: its claims come back after `visibilityTimeout` (90 s), to their former places
    receipts: durable; fenced by the time of the claim
    order: as published, for one reader task; a delayed message when it is due
    delay: whole seconds (rounded up), no limit
    headers, keys: none; with `pgmq` both, with `debezium` a key and the header `type`
    browse: exact; locks nothing
    publish once: yes, for seven days
    dead letters: queue `<queue>.dlq`; InitPHP's style the failed table
    `delivery` column: `id` is the row's id, `redelivered` whether a claim had lapsed, `enqueued_at`
        `created_at`; others null

Options, as `sql.<name>`:
    layout (`initphp`): `outbox`: a transactional outbox, whose rows stay; `debezium`: one of Debezium's
        outbox event router; `pgmq`: pgmq's queues in PostgreSQL
    table (`jobs`; `outbox` of both outboxes): the queues' table; letters, digits and underscores
    acknowledge (`delete`): `archive` moves what was read of pgmq's queues into its archives
    failed_table (`<table>_failed`): the table of InitPHP's dead letters
    time_zone (`UTC`): IANA zone of all times, PHP's `date.timezone`; also spelt `sql.timeZone`

The queue name `failed/<queue>` stands for the rows of the failed table with that queue. It can be
browsed, counted and published to, and what a browse of it gave can be acknowledged; it cannot be claimed.
"""

from babelqueue_spark.bindings.sql.binding import SqlBinding

__all__ = ["SqlBinding"]
