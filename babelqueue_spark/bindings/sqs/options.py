"""The options of the SQS binding, from the connection string and from `sqs.<name>` options."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from babelqueue_spark.bindings import aws
from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.options import (
    OptionTable,
    Parsers,
    byte_size,
    duration,
    flag,
    seconds,
    whole,
)
from babelqueue_spark.errors import OptionError

DEFAULT_VISIBILITY = 90.0
LONGEST_VISIBILITY = 43_200
LARGEST_MESSAGE = 1_048_576

_OWN: Parsers = {
    **aws.OWN,
    "prefix": str,
    "visibility_timeout": duration,
    "wait_time": seconds,
    "fifo": flag,
    "group_id": str,
    "content_dedup": flag,
    "concurrency": whole(1),
    "max_message_bytes": byte_size,
}
_TABLE = OptionTable(broker="sqs", own=_OWN, of_client=aws.OF_BOTO3)


@dataclass(frozen=True, kw_only=True)
class SqsOptions(aws.AwsOptions):
    """What the binding makes of its configuration.

    Attributes:
        prefix: what precedes the name in a queue's URL; None = ask SQS for the URL.
        visibility: whole seconds a claim may stay unacknowledged.
        fifo: all queues are FIFO queues.
        group_id: the message group of messages without a key.
        content_dedup: FIFO queues deduplicate by content.
        max_message_bytes: most bytes of a message, and of the messages of a request.
    """

    prefix: str | None = field(default=None, repr=False)
    visibility: int
    fifo: bool = False
    group_id: str | None = None
    content_dedup: bool = False
    max_message_bytes: int = LARGEST_MESSAGE

    @classmethod
    def parse(cls, config: BindingConfig) -> SqsOptions:
        """Read a configuration; `OptionError` for what is unknown or cannot be used."""
        given = _TABLE.parse(config, aws.of_url("sqs", "SQS", config.url))
        given.pop("wait_time", None)  # the SDK's long polling: a claim never waits
        visibility = given.pop("visibility_timeout", DEFAULT_VISIBILITY)
        if config.visibility_timeout is not None:
            visibility = config.visibility_timeout
        if not 0 < visibility <= LONGEST_VISIBILITY:
            raise OptionError(f"sqs: the visibility timeout must be 1 to {LONGEST_VISIBILITY} seconds")
        return cls(visibility=math.ceil(visibility), **aws.of_session("sqs", given))
