"""Amazon Kinesis data streams, read by sequence numbers.

Connection string: `kinesis://REGION`; with `?endpoint=http://host:port` for anything but AWS. A queue is a
stream. A write creates a stream that is missing.

`docs/brokers/kinesis.md` has what follows as tables, and says more.

Features:
    read: by sequence numbers, in Spark's own offsets: a replay reads the same records
    journal: none: `journalLocation` is ignored
    a reader dies: the task or the batch is repeated
    order: within a key, also over splits and merges of shards
    delay, headers: none
    key: the partition key; random where a message has none
    browse: `spark.read` reads ranges: `startingOffsets`, `endingOffsets`
    publish once: no: repeats have the same `meta.id`s
    dead letters: stream `<stream>.dlq`; InitPHP's style `<stream>.failed`
    `delivery` column: `id` is `shard:sequence number`, `enqueued_at` ApproximateArrivalTimestamp, `key` the
        partition key; others null
    `attempts` column: the body's

Options, as `kinesis.<name>` or in the query:
    region (the URL's host, else the usual chain): the AWS region; or boto3's `region_name`
    endpoint_url (AWS): LocalStack, a VPC endpoint; `?endpoint=` in the URL
    access_key_id, secret_access_key, session_token (the usual chain): the login; or boto3's names (`aws_…`)
    profile: a profile of the AWS configuration, on each host; or `profile_name`
    role_arn, role_session_name, external_id (session `babelqueue-spark`): a role to assume with that login;
        renewed in time
    shard_count (on demand): shards of a stream that a write creates
    max_attempts, connect_timeout, read_timeout (3, 5, 15): attempts of a request; seconds
"""

from babelqueue_spark.bindings.kinesis.binding import KinesisBinding

__all__ = ["KinesisBinding"]
