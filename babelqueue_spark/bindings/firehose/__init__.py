"""Amazon Data Firehose streams, for writes only.

Connection string: `firehose://REGION`; with `?endpoint=http://host:port` for anything but AWS. A queue is a
Firehose stream, which must exist.

`docs/brokers/firehose.md` has what follows as tables, and says more.

Features:
    read: none
    format: a line of JSON for each message
    order, delay, headers, key, browse: none
    publish once: no: repeats have the same `meta.id`s
    dead letters: stream `<stream>.dlq`; InitPHP's style `<stream>.failed`

Options, as `firehose.<name>` or in the query:
    region (the URL's host, else the usual chain): the AWS region; or boto3's `region_name`
    endpoint_url (AWS): LocalStack, a VPC endpoint; `?endpoint=` in the URL
    access_key_id, secret_access_key, session_token (the usual chain): the login; or boto3's names (`aws_…`)
    profile: a profile of the AWS configuration, on each host; or `profile_name`
    role_arn, role_session_name, external_id (session `babelqueue-spark`): a role to assume with that login;
        renewed in time
    max_attempts, connect_timeout, read_timeout (3, 5, 15): attempts of a request; seconds
"""

from babelqueue_spark.bindings.firehose.binding import FirehoseBinding

__all__ = ["FirehoseBinding"]
