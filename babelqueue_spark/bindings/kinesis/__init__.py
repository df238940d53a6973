"""Amazon Kinesis data streams, read by sequence numbers.

Connection string: `kinesis://REGION`; with `?endpoint=http://host:port` for anything but AWS. A queue is a
stream. A write creates a stream that is missing.

`docs/brokers/kinesis.md` has what follows as tables, and says more.

Features:
    read: by sequence numbers, which are in Spark's own offsets: a replay reads the same records
    journal: none: `journalLocation` is ignored
    a reader dies: the task or the batch is repeated
    order: within a key, also over splits and merges of shards; messages without a key have none
    delay, headers: none
    key: the partition key; a message without one gets a random one
    browse: `spark.read` reads ranges: `startingOffsets`, `endingOffsets`
    publish once: no: a repeated batch is published again, with the same `meta.id`s
    dead letters: stream `<stream>.dlq`; `<stream>.failed` with `deadLetterStyle=initphp`
    `delivery` column: `id` is `shard:sequence number`, `enqueued_at` ApproximateArrivalTimestamp, `key` the
        partition key; `count` and `redelivered` are null
    `attempts` column: the body's

Options, as `kinesis.<name>` or in the query:
    region (the URL's host, else the usual chain): the AWS region; or boto3's `region_name`
    endpoint_url (AWS): LocalStack, a VPC endpoint; `?endpoint=` in the URL
    access_key_id, secret_access_key, session_token (the usual chain): `env:NAME` and `file:/path` keep them
        out of plans; or with boto3's `aws_` before the names
    profile: a profile of the AWS configuration, on driver and executors; or `profile_name`
    role_arn, role_session_name, external_id (session `babelqueue-spark`): a role to assume with those
        credentials; renewed in time
    shard_count (on demand): shards of a stream that a write creates
    max_attempts, connect_timeout, read_timeout (3, 5, 15): how often a request is sent; seconds
"""

from babelqueue_spark.bindings.kinesis.binding import KinesisBinding

__all__ = ["KinesisBinding"]
