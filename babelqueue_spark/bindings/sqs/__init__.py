"""Amazon SQS: standard and FIFO queues, by name, URL or ARN.

Connection string: `sqs://REGION`; with `?endpoint=http://host:port` for anything but AWS. The SDKs' query is
understood. A queue that is given by its name is created where it is missing.

`docs/brokers/sqs.md` has what follows as tables, and says more.

Features:
    a reader dies: its claims come back after `visibilityTimeout` (90 s)
    receipts: durable until the claim lapses
    order: standard queue: none; FIFO queue: as published, within a message group
    delay: whole seconds (rounded up), at most 900; FIFO queue: none
    headers: message attributes, ten at most with the contract's
    key: message group, of FIFO and of standard queues
    browse: none
    publish once: no; a FIFO queue drops a repeated message for five minutes
    dead letters: `<queue>-dlq`; InitPHP's style `<queue>_failed`; of `x.fifo` `x-dlq.fifo`, `x_failed.fifo`.
        A queue's own redrive policy still works
    `delivery` column: `id` is the MessageId, `count` ApproximateReceiveCount, `enqueued_at` SentTimestamp,
        `key` MessageGroupId
    `attempts` column: the larger of the body's count and `delivery.count - 1`

Options, as `sqs.<name>` or in the query:
    region (the URL's host, else the usual chain): the AWS region; or boto3's `region_name`
    endpoint_url (AWS): ElasticMQ, LocalStack, a VPC endpoint; `?endpoint=` in the URL
    access_key_id, secret_access_key, session_token (the usual chain): the login; or boto3's names (`aws_…`)
    profile: a profile of the AWS configuration, on each host; or `profile_name`
    role_arn, role_session_name, external_id (session `babelqueue-spark`): a role to assume with that login;
        renewed in time
    prefix: precedes the name in a queue's URL; SQS is not asked for it
    visibility_timeout (90): seconds, 1 to 43 200; `visibilityTimeout` wins. The queue's own is not used
    fifo (off): every queue is FIFO
    group_id (the queue's name): message group of a FIFO queue's messages without a key
    content_dedup (off): FIFO queues deduplicate by content: no ids are sent
    concurrency (4): requests in flight of each reader task and writer
    max_message_bytes (1 048 576): limit of a message and a request; 262 144 for ElasticMQ and older stand-ins
    max_attempts, connect_timeout, read_timeout (3, 5, 15): attempts of a request; seconds
    wait_time: of the SDK's URLs, ignored
"""

from babelqueue_spark.bindings.sqs.binding import SqsBinding

__all__ = ["SqsBinding"]
